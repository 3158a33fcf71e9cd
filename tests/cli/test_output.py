"""Formatted output: numbers, durations, sizes, JSON and tables."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from raymine.cli import output as cli_output


def test_durations_sizes_numbers_and_json_are_formatted(capsys: pytest.CaptureFixture[str]) -> None:
    assert [cli_output.duration(s) for s in (7.26, 250, 7500)] == ["7.3 s", "4 min 10 s", "2 h 05 min"]
    assert [cli_output.size(b) for b in (12, 2048, 3 << 30, 5 << 40)] == ["12 B", "2.0 KiB", "3.0 GiB", "5.0 TiB"]
    assert cli_output.number(None) == cli_output.number(math.nan) == "-"
    cli_output.emit_json({"a": math.inf, "b": (Path("x"), True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": ["x", True, None]}
    cli_output.say("a [red]path[/red]")
    assert capsys.readouterr().err == "a [red]path[/red]\n"


def test_time_of_a_command_is_told_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    cli_output.took(75.04, {"rendering": 70.0, "scores and pictures": 3.0})
    expected = "Took 1 min 15 s: loading 2.0 s, rendering 1 min 10 s, scores and pictures 3.0 s.\n"
    assert capsys.readouterr().err == expected


def test_narrow_table_does_not_wrap_numbers() -> None:
    row = ("/a/rather/long/path/to/a/run", "a scene", "29.83", "11.40")
    made = cli_output.table("", ("run", "scene", "train", "test"), [row], right=("train", "test"))
    text = io.StringIO()
    Console(file=text, width=36).print(made)
    assert "29.83" in text.getvalue()
    assert "11.40" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 36


def test_digests_are_shortened_and_other_words_are_not() -> None:
    assert cli_output.shortened("a" * 64) == "a" * 12
    assert cli_output.shortened("0" * 40 + "-dirty") == "0" * 12 + "-dirty"
    assert cli_output.shortened("/data/lego, 123456") == "/data/lego, 123456"


@pytest.mark.parametrize("terminal", [False, True])
def test_waiting_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    monkeypatch.setattr(cli_output, "messages", lambda: console)
    with cli_output.waiting("Opening runs/[a]"):
        pass
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("Opening runs/[a] ..." in written) == terminal
    assert terminal or written == ""
