"""Runs a step of COLMAP in a process of its own (`worker`), with its messages in a log file.

So its library cannot print over ours, a crash in it is an error that names the log, and Ctrl-C ends it at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from raymine.errors import RaymineError
from raymine.files import JSON

_STOP_SECONDS = 5.0


class StepFailed(RaymineError):
    """A step of COLMAP that ended with an error or crashed."""


def run_step(
    step: str, job: Mapping[str, JSON], log: Path, *, progress: Callable[[int, int], None] | None = None
) -> JSON:
    """Run a function of `worker` on `job` and return its result. Messages of COLMAP are appended to `log`."""
    command = [sys.executable, "-m", "raymine.ingestion.worker", step]
    result: JSON = None
    with log.open("ab") as messages:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, env=_environment()
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            try:
                # The pipe stays open: when this process ends in any way, the worker finds its end and ends too.
                process.stdin.write(json.dumps(dict(job)).encode() + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass
            for line in process.stdout:
                word, _, rest = line.decode(errors="replace").partition(" ")
                if word == "progress" and progress is not None:
                    done, total = rest.split()
                    progress(int(done), int(total))
                elif word == "result":
                    result = json.loads(rest)
            process.stdin.close()
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    if code != 0 or result is None:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise StepFailed(
            f"COLMAP {how} while it was to {_WORDS[step]}. {_last_words(log)}",
            hint=f"Its messages are in {log}. The same command continues from the last finished stage. "
            "If memory was short, try a smaller feature size.",
        )
    return result


_WORDS = {
    "features": "find features",
    "matches": "match photos",
    "mapping": "compute poses",
    "undistort": "undistort photos",
    "place": "orient the scene",
}


def _environment() -> dict[str, str]:
    """Ours, with the folders from which this process imports."""
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log: Path) -> str:
    """The last line that COLMAP wrote, without its prefix of time and place."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"It said last: {lines[-1].rpartition('] ')[2].strip()}" if lines else ""
