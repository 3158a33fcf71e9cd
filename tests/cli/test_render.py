"""`raymine render`: parsing of --size, and checks of the output path."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.cli.render import check_output, parse_size
from raymine.errors import ConfigError


@pytest.mark.parametrize("text", ["12", "0x4", "ax3", "12x", "-1x4", "1x2x3", ""])
def test_parse_size_rejects_malformed_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="--size must look like 320x240"):
        parse_size(text)


def test_parse_size_accepts_either_case_and_none() -> None:
    assert parse_size("320x240") == (320, 240)
    assert parse_size("320X240") == (320, 240)
    assert parse_size(None) is None


def test_check_target_rejects_existing_or_unsupported_targets(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "dir.mp4").mkdir()
    for target, words in (
        (tmp_path / "full", "is not empty"),
        (tmp_path / "full" / "x", "is a file; frames need a folder"),
        (tmp_path / "dir.mp4", "is a folder; a video needs a file name"),
        (tmp_path / "x.gif", "written as .mp4, not .gif"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_output(target)
    check_output(tmp_path / "new")
    check_output(tmp_path / "new.mp4")
