"""Fixtures of the command-line tests: a tiny scene, and a working folder and a cache for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.disc_scene import write_scene_of_eight


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A tiny scene in Blender's format."""
    return write_scene_of_eight(tmp_path / "scene")


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
