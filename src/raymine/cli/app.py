"""`raymine`: parse the command line, run one command, and return an exit code.

0 success     1 any other problem     2 wrong usage or option     3 scene     4 run folder
5 memory, disk or permission     6 training     7 missing extra     130 / 143 stopped by Ctrl-C / SIGTERM
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Protocol, cast

import tyro

from raymine._version import __version__
from raymine.errors import RaymineError, speaking_of_flags

from .bench import Bench
from .check import Check
from .demo import Demo
from .doctor import Doctor
from .evaluate import Evaluate
from .render import Render
from .runs import Runs
from .train import Train

_DESCRIPTION = """Train radiance fields from posed photos, on any machine.

Start with `raymine demo`. With photos of your own: `raymine check SCENE`, then `raymine train SCENE`. Help on one
command: `raymine train --help`. `raymine --version` prints the version."""

_NAMES = ("demo", "check", "train", "eval", "render", "runs", "bench", "doctor")

_Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("eval")]
    | Annotated[Render, tyro.conf.subcommand("render")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)

_MARKERS = (
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.DisallowNone,
    tyro.conf.OmitArgPrefixes,
    tyro.conf.PositionalMetavarFromFieldName,
)


class _Runnable(Protocol):
    def execute(self) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name; None uses `sys.argv`) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _shorten_spinning()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    try:
        with speaking_of_flags():
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it. Without this, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except KeyboardInterrupt:
        return _fail("stopped by Ctrl-C", "", 130)
    except RaymineError as error:
        return _fail(error.message, error.hint, error.exit_code)
    except (MemoryError, OSError, RuntimeError) as error:
        remedy = _resource_problem(error)
        if remedy is None:
            raise
        return _fail(*remedy, 5)


def _shorten_spinning() -> None:
    """Let idle OpenMP threads sleep sooner, unless the user has set this. Takes effect only before torch is imported.

    torch and Numba each have a thread pool whose idle threads spin. By default the spinning threads of one pool take
    cores from the other: on 2 cores a step took 12.4 to 22.1 ms from run to run, and 11.6 to 13.0 ms with this.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _run(arguments: list[str]) -> int:
    if not arguments:
        _parse(["--help"])
        return 2
    if arguments[0] in ("--version", "-V"):
        print(f"raymine {__version__}")
        return 0
    if not arguments[0].startswith("-") and arguments[0] not in _NAMES:
        close = difflib.get_close_matches(arguments[0], _NAMES, n=1)
        meant = f" Did you mean `{close[0]}`?" if close else ""
        return _fail(f"there is no command `{arguments[0]}`.{meant}", f"Commands: {', '.join(_NAMES)}.", 2)
    parsed = _parse(arguments)
    return parsed if isinstance(parsed, int) else parsed.execute()


def _parse(arguments: list[str]) -> _Runnable | int:
    """The command to run, or an exit code if tyro has already printed help or an error."""
    try:
        # tyro accepts a union of dataclasses, but its signature asks for a type.
        command: _Runnable = tyro.cli(
            cast("type[_Runnable]", _Command),
            prog="raymine",
            description=_DESCRIPTION,
            args=arguments,
            config=_MARKERS,
        )
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    return command


def _resource_problem(error: Exception) -> tuple[str, str] | None:
    """Message and hint for an error of memory, disk or permissions that no other code caught; None for a bug."""
    text = str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        first = text.strip().splitlines()[0] if text.strip() else "no details"
        return f"not enough memory ({first}).", "Try --downscale 2 or more, or close other programs."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk ({error.filename or 'unknown file'}).", "Free some space and try again."
    if isinstance(error, PermissionError):
        return f"no permission to use {error.filename}.", "Change its permissions, or choose another folder."
    return None


def _fail(message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)
    return code
