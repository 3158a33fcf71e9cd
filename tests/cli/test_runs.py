"""`raymine runs` without any runs."""

from __future__ import annotations

import json

import pytest

from raymine.cli import main


def test_runs_lists_nothing_without_a_runs_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "No runs in runs." in err
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"root": "runs", "runs": []}
