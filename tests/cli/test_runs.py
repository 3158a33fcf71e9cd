"""`raymine runs`: what it says where there are none."""

from __future__ import annotations

import json

import pytest

from raymine.cli import main


def test_runs_of_an_empty_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "No runs in runs." in err
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"root": "runs", "runs": []}
