"""Commands of several processes that tests start, watch, and end whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from raymine.checkpoint import list_steps

TESTS = Path(__file__).parents[1]
TRAIN = ("train", "scene", "--recipe", "support.runs:tiny", "--device", "cpu")
LIMIT = 900.0
"""Seconds that anything may take here, on a machine that is busy with other tests."""


class Started:
    """A running command. Its output goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process, self._output = process, output

    @property
    def output(self) -> str:
        """What it has written to stdout and stderr so far."""
        return self._output.read_text()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def errors(self) -> list[str]:
        """The lines that begin a message of an error."""
        return [line for line in self.output.splitlines() if line.startswith("error: ")]

    def worker(self, rank: int) -> psutil.Process | None:
        """The process of that rank, if there is one now."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.environ().get("RANK") == str(rank):
                        return child
        return None

    def kill_worker(self, rank: int) -> None:
        """Kill the process of that rank as `kill -9` does."""
        child = self.worker(rank)
        assert child is not None, self.output
        child.kill()

    def kill(self) -> None:
        """Kill the command itself as `kill -9` does, not its children."""
        self._process.kill()
        self.wait()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait while the command runs; it must not end before the condition holds."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert self.running, f"ended with {self.wait()}:\n{self.output}"
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def wait(self) -> int:
        """The exit code."""
        return self._process.wait(timeout=LIMIT)

    def end(self) -> None:
        """Kill it and its children."""
        found = [psutil.Process(self._process.pid)] if self.running else []
        for process in [*found, *(child for each in found for child in each.children(recursive=True))]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait(timeout=LIMIT)


class Starter:
    """Starts commands in a folder, and ends those that still run when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Started] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> Started:
        """Run `python -m COMMAND`. prefix: a program that runs it, with its arguments."""
        output = self._folder / f"output-{len(self._started)}.txt"
        path = os.pathsep.join([str(TESTS), *(each for each in sys.path if each)])
        own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", *command],
                cwd=self._folder,
                env={**os.environ, **own, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self._started.append(Started(process, output))
        return self._started[-1]

    def rank(self, rank: int, world: int, port: int, *command: str) -> Started:
        """Run `raymine COMMAND` as one of `world` processes of a launcher that does not exist."""
        place = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return self.start(["raymine", *command], {name: str(value) for name, value in place.items()})

    @contextlib.contextmanager
    def ended(self) -> Iterator[Starter]:
        try:
            yield self
        finally:
            for each in self._started:
                each.end()


def checkpoints(run: Path) -> list[int]:
    """Steps of the checkpoints that are complete."""
    return list_steps(run / "checkpoints") if (run / "checkpoints").is_dir() else []


def rows(run: Path) -> int:
    """Metrics rows so far."""
    return len((run / "metrics.jsonl").read_text().splitlines()) if (run / "metrics.jsonl").exists() else 0


def status(run: Path) -> str:
    """What the manifest says: running, finished or stopped."""
    return str(json.loads((run / "manifest.json").read_text())["status"])


def final_psnr(run: Path) -> float:
    """PSNR on test views, in dB, of the last quick evaluation."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([row["psnr"] for row in found if row["kind"] == "eval"][-1])
