"""Run as `python -m raymine.pipeline.child PARENT raymine ARGUMENT ...` or `... PARENT own PROGRAM ARGUMENT ...`.

With `trial` instead of `raymine`, the arguments are those of `raymine.cli.training.trial`. One stage of a pipeline, or
one trial of a sweep. It ends when the process PARENT does, even if that was killed: otherwise it would go on to write
to folders that a restarted pipeline uses. PARENT is a process id; or `stdin`, for a command on another host, which ends
when its standard input does.
"""

from __future__ import annotations

import os
import sys
import threading

from raymine.lifetime import die_with, end_with


def _watch_input() -> None:
    """End this process when its standard input ends."""
    while os.read(0, 4096):
        pass
    os._exit(137)


def main() -> int:
    kind, *arguments = sys.argv[2:]
    if sys.argv[1] == "stdin":
        threading.Thread(target=_watch_input, daemon=True).start()
    elif kind == "own":
        # The other program inherits this, but no thread that looks for the parent.
        die_with(int(sys.argv[1]))
    else:
        end_with(int(sys.argv[1]))
    if kind == "own":
        try:
            os.execvp(arguments[0], arguments)
        except OSError as error:
            print(f"error: the program {arguments[0]} cannot be started: {error.strerror}.", file=sys.stderr)
            return 2
    sys.argv = ["raymine", *arguments]
    import importlib

    module = {"raymine": "raymine.cli", "trial": "raymine.cli.training.trial"}[kind]
    return int(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    sys.exit(main())
