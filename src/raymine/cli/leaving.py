"""End the process of a command without taking torch, Triton and Numba apart, which takes half a second."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process with an exit code as Python does, but for the destruction of modules and objects.

    Threads that are not daemons are waited for, functions registered with `atexit` run, and streams are flushed. The
    operating system takes back the rest at once.
    """
    wait = getattr(threading, "_shutdown", None)
    finish = getattr(atexit, "_run_exitfuncs", None)
    if wait is None or finish is None:
        # A Python without these two functions, which have no public name.
        raise SystemExit(code)
    wait()
    finish()
    for stream in (sys.stdout, sys.stderr):
        # The reader may have gone, or the stream be closed: `main` has reported what there was to report.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
