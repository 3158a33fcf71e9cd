"""Every test of a command has a folder and a cache of its own."""

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
