"""Messages before training: decisions and warnings always, backends only when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.cli.training.narrate import Narrator
from raymine.experiment import StartInfo

INFO = StartInfo(
    Path("r"), "lego", "ngp", "cpu: test", 0, 0.0, 10, None, notes=("Split: 3 train.",), warnings=("1 image is gone.",)
)


@pytest.mark.parametrize("verbose", [False, True])
def test_backends_are_told_only_with_verbose(verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Narrator(verbose).on_start(INFO)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Split: 3 train.", "warning: 1 image is gone."]
    assert [line.partition(":")[0] for line in lines[2:]] == (["Backends"] if verbose else [])
