"""`raymine`: parse the command line, run one command, and return an exit code.

0 success     1 any other problem     2 wrong usage or option     3 scene     4 run folder
5 memory, disk or permission     6 training     7 missing extra     8 lost process
130 / 143 stopped by Ctrl-C / SIGTERM
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import inspect
import logging
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import tyro

from raymine._version import __version__
from raymine.errors import RaymineError, ResourceError, absent_options, did_you_mean, speaking_of_flags
from raymine.files import expanded
from raymine.machine import shorten_spinning
from raymine.terminal import discard, guarded_streams

from .bench import BENCHMARKS, Bench
from .doctor import Doctor
from .flags import flags_of, require_valid
from .inputs.cache import Cache
from .inputs.check import Check
from .inputs.ingest import Ingest
from .inputs.pack import Pack
from .inputs.recipes import Recipes
from .leaving import leave
from .results.evaluate import Evaluate
from .results.export import Export
from .results.render import Render
from .results.report import Report
from .results.reproduce import Reproduce
from .results.runs import Runs
from .results.serve import Serve
from .results.verify import Verify
from .results.view import View
from .training.demo import Demo
from .training.pipeline import Pipeline
from .training.sweep import Sweep
from .training.train import Train

_DESCRIPTION = """Train radiance fields from posed photos, on any machine.

Start with `raymine demo`. With photos of your own: `raymine ingest PHOTOS --out SCENE`, then `raymine train SCENE`.
Help on one command: `raymine train --help`. `raymine --version` prints the version."""

COMMANDS: dict[str, type] = {
    "demo": Demo,
    "ingest": Ingest,
    "check": Check,
    "recipes": Recipes,
    "train": Train,
    "eval": Evaluate,
    "render": Render,
    "export": Export,
    "view": View,
    "serve": Serve,
    "report": Report,
    "runs": Runs,
    "reproduce": Reproduce,
    "pipeline": Pipeline,
    "sweep": Sweep,
    "pack": Pack,
    "verify": Verify,
    "cache": Cache,
    **{f"bench {name}": command for name, command in BENCHMARKS.items()},
    "doctor": Doctor,
}
"""The dataclass of every command, by what is typed after `raymine`."""

_NAMES = tuple(dict.fromkeys(name.partition(" ")[0] for name in COMMANDS))

_OVERVIEW = {name: COMMANDS.get(name, Bench) for name in _NAMES}

_SMALLER = {
    "train": "Try --downscale 2 or more. ",
    "bench": "Try --downscale 2 or more, or fewer --samples. ",
    "check": "Try --downscale 2 or more. ",
    "ingest": "Try a smaller --feature-size. ",
    "render": "Try a smaller --size. ",
    "export": "Try a smaller --resolution or --count. ",
}
"""What makes a command need less memory."""

_BUG = """This is a bug in raymine. Please report it, with the command that you typed and the lines below.
Run folders are intact: every file in them is written as a whole."""

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
    return guarded(arguments, lambda: _run(arguments))


def run() -> NoReturn:
    """The program `raymine`: run the command line of this process, and end the process."""
    leave(main())


def guarded(arguments: list[str], action: Callable[[], int]) -> int:
    """The exit code of `action`. An error that the user can fix becomes a message and its code.

    arguments: those of the command line, for advice.
    """
    shorten_spinning()
    with guarded_streams(), speaking_of_flags():
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
        try:
            code = action()
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # The reader of a pipe (head, less) has closed it. Without this, Python would complain again at exit.
            discard(sys.stdout)
            return 128 + 13
        except KeyboardInterrupt:
            return _fail("stopped by Ctrl-C", "", 130)
        except RaymineError as error:
            return _fail(error.message, error.hint, error.exit_code)
        except Exception as error:
            remedy = _resource_problem(error, arguments)
            if remedy is None:
                print(_BUG, file=sys.stderr)
                raise
            return _fail(*remedy, 5)


def _run(arguments: list[str]) -> int:
    if not arguments:
        _overview("raymine", _DESCRIPTION, _OVERVIEW)
        return 2
    first, *rest = arguments
    _require_working_folder()
    if first in ("--version", "-V"):
        print(f"raymine {__version__}")
        return 0
    if first in ("--help", "-h", "help"):
        return _overview("raymine", _DESCRIPTION, _OVERVIEW)
    if first not in _NAMES:
        commands = f"Commands: {', '.join(_NAMES)}."
        if first.startswith("-"):
            meant = did_you_mean(first, ("--help", "--version"))
            if meant and not any(first in flags_of(command) for command in COMMANDS.values()):
                return _fail(f"there is no option {first}.{meant}", commands, 2)
            return _fail(f"{first} stands before the command; options come after it.", commands, 2)
        return _fail(f"there is no command `{first}`.{did_you_mean(first, _NAMES)}", commands, 2)
    if first == "bench":
        if not rest or rest[0] in ("--help", "-h"):
            _overview("raymine bench", inspect.cleandoc(Bench.__doc__ or ""), BENCHMARKS)
            return 0 if rest else 2
        if rest[0] not in BENCHMARKS:
            meant = did_you_mean(rest[0], BENCHMARKS)
            return _fail(f"there is no benchmark `{rest[0]}`.{meant}", f"Benchmarks: {', '.join(BENCHMARKS)}.", 2)
        first, *rest = f"bench {rest[0]}", *rest[1:]
    parsed = parse(first, rest)
    if isinstance(parsed, int):
        return parsed
    with absent_options({"out"} if "--out" not in flags_of(COMMANDS[first]) else ()):
        return parsed.execute()


def _require_working_folder() -> None:
    """Raise `ResourceError` if the working folder was removed. torch would end the process with a message of MKL."""
    try:
        os.getcwd()
    except OSError as error:
        raise ResourceError("The folder that you are in no longer exists.", hint="Change to another one.") from error


def parse(name: str, arguments: list[str]) -> _Runnable | int:
    """The command to run, or an exit code if tyro has already printed help or an error."""
    require_valid(name, arguments, COMMANDS[name], COMMANDS)
    try:
        command: Any = tyro.cli(COMMANDS[name], prog=f"raymine {name}", args=arguments, config=_MARKERS)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    return _with_home(command)


def _overview(program: str, description: str, commands: Mapping[str, type]) -> int:
    """Print the help page that lists several commands."""
    # tyro accepts a union of dataclasses, but its signature asks for a type.
    members: list[Any] = [Annotated[each, tyro.conf.subcommand(name)] for name, each in commands.items()]
    choices: Any = functools.reduce(operator.or_, members)
    with contextlib.suppress(SystemExit):
        tyro.cli(choices, prog=program, description=description, args=["--help"], config=_MARKERS)
    return 0


def _with_home(command: Any) -> Any:
    """The command with `~` replaced in its paths. A shell does not do so in `--out=~/run`."""
    values = {field.name: getattr(command, field.name) for field in dataclasses.fields(command)}
    paths: dict[str, Any] = {name: expanded(value) for name, value in values.items() if isinstance(value, Path)}
    for name, value in values.items():
        if isinstance(value, tuple) and any(isinstance(each, Path) for each in value):
            paths[name] = tuple(expanded(each) for each in value)
    return dataclasses.replace(command, **paths)


def _resource_problem(error: Exception, arguments: list[str]) -> tuple[str, str] | None:
    """Message and hint for an error of memory, disk or permissions that no other code caught; None for a bug."""
    text = str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
        first = text.strip().splitlines()[0] if text.strip() else "no details"
        smaller = _SMALLER.get(arguments[0], "") if arguments else ""
        return f"not enough memory ({first}).", f"{smaller}Close other programs, or use a machine with more memory."
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk ({error.filename or 'unknown file'}).", "Free some space and try again."
    if error.filename is None:
        return None
    if isinstance(error, PermissionError):
        return f"no permission to use {error.filename}.", "Change its permissions, or choose another folder."
    return f"cannot use {_shortened(str(error.filename))}: {error.strerror}.", "Check the path, or give another one."


def _shortened(path: str) -> str:
    return path if len(path) <= 200 else f"{path[:100]}...{path[-60:]}"


def _fail(message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)
    return code
