"""`raymine check`: problems and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine.cli import main


def test_check_reports_a_damaged_image_and_exits_with_3(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(scene), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    (scene / "train" / "r_1.png").write_bytes((scene / "train" / "r_1.png").read_bytes()[:60])
    assert main(["check", str(scene), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["errors"] >= 1
    assert "r_1" in json.dumps(document["problems"])
    assert main(["check", str(scene)]) == 3
    out = capsys.readouterr().out
    assert "r_1" in out
    assert f"{scene}: 1 error, no warnings. Training needs the errors fixed." in out.replace("\n", " ")
