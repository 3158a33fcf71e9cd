"""Stages of pipelines and trials of sweeps without processes, for speed."""

from __future__ import annotations

import contextlib
import io
import os
from typing import IO
from unittest.mock import patch

from raymine.cli import main
from raymine.cli.training import trial

_VARIABLE = "NUMBA_NUM_THREADS"
_STARTED_WITH = os.environ.get(_VARIABLE)


class InThisProcess:
    """A stand-in for `subprocess.Popen` that runs a command of raymine at once, where torch is imported already."""

    stdin = None

    def __init__(self, command: list[str], *, stdout: IO[bytes], stderr: IO[bytes], **_: object) -> None:
        assert command[2] == "raymine.pipeline.child"
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()), patch.dict(os.environ):
            # Numba reads this at every compilation, and refuses another number than it was started with.
            os.environ.pop(_VARIABLE, None)
            if _STARTED_WITH is not None:
                os.environ[_VARIABLE] = _STARTED_WITH
            self.returncode = {"raymine": main, "trial": trial.main}[command[4]](command[5:])
        stdout.write(text.getvalue().encode())

    def poll(self) -> int:
        return self.returncode
