"""Errors name options as the caller knows them: arguments in Python, flags on the command line."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import raymine
from raymine.cli import app, main
from raymine.errors import ConfigError, option, renamed_options, speaking_of_flags
from raymine.experiment import TrainRequest
from raymine.files import resource_error

ROOT = Path(raymine.__file__).parent

FLAGS_OF_GIT = {"--always", "--abbrev=40", "--dirty", "--exclude=*"}
STARTS_PROCESSES = {
    "evaluate/lpips/weights.py",
    "pipeline/ray_cluster.py",
    "pipeline/slurm.py",
    "pipeline/stages.py",
    "pipeline/sweep.py",
}
"""Files in which a string that is just a flag, or a flag with its value, is an argument of another process."""
OF_OTHERS = ("var(--", "setProperty('--", "pip install --", "pip download --", " --hash=sha256:")
"""CSS variables begin with two dashes as well, and pip has flags of its own."""


def is_message(path: str, text: str) -> bool:
    """Whether a string with two dashes in it is, or is a part of, something that a user reads about raymine."""
    argument = path in STARTS_PROCESSES and re.fullmatch(r"--[a-z-]+(=[\w:]*)?", text) is not None
    return text not in FLAGS_OF_GIT and not argument and not any(other in text for other in OF_OTHERS)


def test_option_is_an_argument_in_python_and_a_flag_on_the_command_line() -> None:
    cases = [
        (("max_seconds",), "`max_seconds`", "--max-seconds"),
        (("max_seconds", 5), "`max_seconds=5`", "--max-seconds 5"),
        (("device", "cuda"), "`device='cuda'`", "--device cuda"),
        (("out", Path("a/b")), "`out='a/b'`", "--out a/b"),
        (("resume", True), "`resume=True`", "--resume"),
        (("page", False), "`page=False`", "--no-page"),
    ]
    for arguments, argument, flag in cases:
        assert option(*arguments) == argument
        with speaking_of_flags():
            assert option(*arguments) == flag
    assert option("steps") == "`steps`"


def test_renamed_options_change_the_names_in_messages() -> None:
    with renamed_options({"max_seconds": "seconds"}):
        assert option("max_seconds", 3) == "`seconds=3`"
        assert option("steps") == "`steps`"
    assert option("max_seconds") == "`max_seconds`"


def test_same_error_names_arguments_in_python_and_flags_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"^`steps=5` and `max_seconds=3.0` were both given"):
        TrainRequest("builtin", steps=5, max_seconds=3.0)

    def execute(self: object) -> int:
        TrainRequest("builtin", steps=5, max_seconds=3.0)
        return 0

    monkeypatch.setattr(app.Runs, "execute", execute)
    assert main(["runs"]) == 2
    assert capsys.readouterr().err.startswith("error: --steps 5 and --max-seconds 3.0 were both given")
    assert option("steps") == "`steps`", "the command line has left its words behind"


def test_advice_names_no_option_that_the_command_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = OSError()

    def execute(self: object) -> int:
        raise resource_error(failure, "write it", tmp_path)

    for code, advice in (
        (errno.ENOSPC, "Free some space; nothing that was there before is lost."),
        (errno.EROFS, "Change the permissions of the folder."),
        (errno.ENOLCK, "or on a mount with locks such as NFS 4."),
    ):
        failure = OSError(code, os.strerror(code))
        for command, lacks in ((app.Runs, True), (app.Report, False)):
            monkeypatch.setattr(command, "execute", execute)
            assert main(["runs"] if lacks else ["report", "x"]) == 5
            told = capsys.readouterr().err
            assert ("--out" not in told) == lacks
            assert (advice in told) == lacks


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string in a file that is not a docstring."""
    tree = ast.parse(path.read_text())
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value


def test_no_message_outside_the_command_line_names_a_flag() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("cli", "errors.py")
        for line, text in strings_of(path)
        if re.search(r"(?<![\w-])--[a-z]", text) and is_message(path.relative_to(ROOT).as_posix(), text)
    ]
    assert not found, "say it with raymine.errors.option:\n" + "\n".join(found)
