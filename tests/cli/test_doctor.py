"""`raymine doctor`: the reported backends and their reasons."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from raymine import __version__
from raymine.cli import main


def user_extras() -> set[str]:
    """The extras of pyproject.toml that users install; `dev` is for work on raymine itself."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", section, re.MULTILINE)) - {"dev"}


def test_doctor_gives_a_reason_for_every_backend_choice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["raymine"]["version"] == __version__
    assert {"hash_grid", "march", "composite"} <= {row["op"] for row in report["backends"]}
    assert all(row["reason"] for row in report["backends"])
    assert report["cuda"]["reason"]
    assert report["cache"]["folder"] == str(tmp_path / "cache")
    assert {row["extra"] for row in report["extras"]} == user_extras()
    assert main(["doctor"]) == 0
    assert "hash_grid" in capsys.readouterr().out
