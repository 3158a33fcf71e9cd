"""Processes that end with the one that started them, even if that was killed. Imports nothing of raymine."""

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
    """End this process when `parent` ends, where the system can do that (Linux). A program that it executes ends too.

    parent: the process id of the parent. If another process is the parent by now, this one ends at once.
    """
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
