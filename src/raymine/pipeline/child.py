"""Run as `python -m raymine.pipeline.child PARENT raymine ARGUMENT ...` or `... PARENT own PROGRAM ARGUMENT ...`.

With `trial` instead of `raymine`, the arguments are those of `raymine.cli.training.trial`. One stage of a pipeline, or
one trial of a sweep. It ends when the process PARENT does, even if that was killed: otherwise it would go on to write
to folders that a restarted pipeline uses. PARENT is a process id; or `stdin`, for a command on another host, which ends
when its standard input does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_PERIOD = 0.5


def die_with(parent: int) -> None:
    """End this process when `parent` ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)


def end_with(parent: int) -> None:
    """As `die_with`, on every system: for a process that goes on in Python."""
    die_with(parent)
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """Where the system does not tell that the parent has ended, look for it."""
    while os.getppid() == parent:
        time.sleep(_PERIOD)
    os._exit(137)


def _watch_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(137)


def main() -> int:
    kind, *arguments = sys.argv[2:]
    if sys.argv[1] == "stdin":
        threading.Thread(target=_watch_input, daemon=True).start()
    else:
        parent = int(sys.argv[1])
        die_with(parent)
    if kind == "own":
        # The wish to die with the parent outlives this call.
        try:
            os.execvp(arguments[0], arguments)
        except OSError as error:
            print(f"error: the program {arguments[0]} cannot be started: {error.strerror}.", file=sys.stderr)
            return 2
    if sys.platform != "linux" and sys.argv[1] != "stdin":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    sys.argv = ["raymine", *arguments]
    import importlib

    module = {"raymine": "raymine.cli", "trial": "raymine.cli.training.trial"}[kind]
    return int(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    sys.exit(main())
