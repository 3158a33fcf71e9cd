"""`raymine doctor`: the reported backends and their reasons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine import __version__
from raymine.cli import main


def test_doctor_gives_a_reason_for_every_backend_choice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["raymine"]["version"] == __version__
    assert {"hash_grid", "march", "composite"} <= {row["op"] for row in report["backends"]}
    assert all(row["reason"] for row in report["backends"])
    assert report["cuda"]["reason"]
    assert report["cache"]["folder"] == str(tmp_path / "cache")
    assert main(["doctor"]) == 0
    assert "hash_grid" in capsys.readouterr().out
