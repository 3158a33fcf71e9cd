"""Runs a step of COLMAP in a process of its own (`worker`), with its messages in a log file.

So its library cannot print over ours, a crash in it is an error that names the log, and Ctrl-C ends it at once. How far
a step is, is counted in its messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from raymine.errors import RaymineError
from raymine.files import JSON, UnreadableFile, read_json

_STOP_SECONDS = 5.0
_COUNTED = {
    "features": rb"Processed file \[",
    "matches": rb"Processing (block|image) \[",
    "mapping": rb"Registering (initial )?image",
}
"""Messages that tell progress."""
_WORDS = {
    "features": "find features",
    "matches": "match photos",
    "mapping": "compute poses",
    "undistort": "undistort photos",
    "place": "orient the scene",
}


class StepFailed(RaymineError):
    """A step of COLMAP that ended with an error or crashed."""


def run_step(
    step: str,
    job: Mapping[str, JSON],
    log: Path,
    *,
    total: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> JSON:
    """Run a function of `worker` on `job` and return its result. Messages of COLMAP are appended to `log`.

    progress: called with the number of messages that count, and `total`, which is how many are expected.
    """
    result = log.with_name(f"{step}.result")
    result.unlink(missing_ok=True)
    code = _run(step, {**job, "result": str(result.absolute())}, log, total, progress)
    try:
        if code != 0:
            raise UnreadableFile("is not written")
        return read_json(result)
    except UnreadableFile as error:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise StepFailed(
            f"COLMAP {how} while it was to {_WORDS[step]}. {_last_words(log)}",
            hint=f"Its messages are in {log}. The same command continues from the last finished stage. "
            "If memory was short, try a smaller feature size.",
        ) from error
    finally:
        result.unlink(missing_ok=True)


def _run(step: str, job: Mapping[str, JSON], log: Path, total: int, progress: Callable[[int, int], None] | None) -> int:
    """The exit code of the worker."""
    command = [sys.executable, "-m", "raymine.ingestion.worker", step]
    counted = re.compile(_COUNTED.get(step, rb"$^"))
    with log.open("ab") as messages:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment()
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                # The pipe stays open: when this process ends in any way, the worker finds its end and ends too.
                process.stdin.write(json.dumps(dict(job)).encode() + b"\n")
                process.stdin.flush()
            done = 0
            for line in process.stdout:
                messages.write(line)
                if counted.search(line) and progress is not None:
                    # The first registered pair is two photos.
                    done += 2 if b"initial image pair #" in line else 1
                    progress(min(done, total), total)
            messages.flush()
            return process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            process.stdout.close()
            # Bytes that a worker did not read any more are of no use.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


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
    """The last message that COLMAP wrote, without its prefix of time and place; no line of a stack trace."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith(("@", "***", "PC:"))]
    return f"It said last: {said[-1].rpartition('] ')[2].strip()}" if said else ""
