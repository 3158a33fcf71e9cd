"""Words for people: numbers, durations and sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from raymine.cli import output as cli_output


def test_output_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert [cli_output.duration(s) for s in (7.26, 250, 7500)] == ["7.3 s", "4 min 10 s", "2 h 05 min"]
    assert [cli_output.size(b) for b in (12, 2048, 3 << 30, 5 << 40)] == ["12 B", "2.0 KiB", "3.0 GiB", "5.0 TiB"]
    assert cli_output.number(None) == cli_output.number(math.nan) == "-"
    cli_output.emit_json({"a": math.inf, "b": (Path("x"), True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": ["x", True, None]}
    cli_output.say("a [red]path[/red]")
    assert capsys.readouterr().err == "a [red]path[/red]\n"
