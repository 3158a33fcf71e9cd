"""The wall-clock benchmark: what whole commands take, from the start of their process to its exit, as JSON rows.

Each command runs in a process of its own, as a user would start it. The stages of `train` are those that its manifest
records (`experiment.stopwatch`); `exit` is the rest, from its last checkpoint to the end of the process. `floor` is a
process that imports torch and Triton and opens the device: no command can be quicker.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raymine.errors import ConfigError, RunError, option
from raymine.experiment.prepare import resolve_device
from raymine.recipes import AUTO
from raymine.rundir import Environment, RunDir, describe_environment

from .rows import StageProgress, append_rows, require_rows_file

WallCommand = Literal["floor", "train", "eval", "render"]
_FLOORS = {
    "cpu": "import torch, numba; torch.zeros(1)",
    "cuda": "import torch, triton; torch.zeros(1, device='cuda'); torch.cuda.synchronize()",
}


@dataclass(frozen=True)
class WallRequest:
    """A wall-clock benchmark. seconds: of training. repeats: times that each command runs. frames: of the orbit that
    `render` makes; 0 leaves it out. Other fields as in `StepRequest`."""

    scene: str | Path
    seconds: float = 1.5
    recipe: str = AUTO
    device: str = "auto"
    downscale: int = 1
    repeats: int = 3
    frames: int = 60
    out: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < 1e6:
            raise ConfigError(f"{option('seconds')} must be above 0 and below 1e6, got {self.seconds}.")
        if not 1 <= self.repeats <= 100:
            raise ConfigError(f"{option('repeats')} must be between 1 and 100, got {self.repeats}.")
        if not 0 <= self.frames <= 10_000:
            raise ConfigError(f"{option('frames')} must be between 0 and 10000, got {self.frames}.")
        require_rows_file(self.out)


@dataclass(frozen=True)
class WallRow:
    """One process. seconds: from its start to its exit. first_step: until its first training steps were done; None but
    for `train`. stages: seconds of each stage of `train`, `exit` included; empty for the others. repeat: from 0; the
    first may compile kernels and decode images, later ones find them in the caches."""

    benchmark: str
    scene: str
    downscale: int
    recipe: str
    training_seconds: float
    environment: Environment
    command: WallCommand
    repeat: int
    seconds: float
    first_step: float | None
    stages: dict[str, float]


def bench_wall(request: WallRequest, progress: StageProgress = lambda *_: None) -> list[WallRow]:
    """Run the commands one after another; each row is written when it is complete. Runs go to a temporary folder."""
    device = resolve_device(request.device)
    rows = []
    with tempfile.TemporaryDirectory(prefix="raymine-bench-wall-") as folder:
        total = request.repeats * (4 if request.frames else 3)
        for number, (command, repeat, line, run) in enumerate(_lines(request, device.type, Path(folder))):
            progress(f"{command}, {repeat + 1} of {request.repeats}", number, total)
            seconds = _time(line)
            stages, first_step = _stages_of(run, seconds) if command == "train" else ({}, None)
            row = WallRow(
                benchmark="wall",
                scene=str(request.scene),
                downscale=request.downscale,
                recipe=request.recipe if command == "floor" else RunDir.open(run).read_manifest().recipe,
                training_seconds=request.seconds,
                environment=describe_environment(device),
                command=command,
                repeat=repeat,
                seconds=round(seconds, 3),
                first_step=first_step,
                stages=stages,
            )
            rows.append(row)
            append_rows(request.out, [row])
    return rows


def _lines(
    request: WallRequest, device: str, folder: Path
) -> Iterator[tuple[WallCommand, int, Sequence[str | Path], Path]]:
    """Command, repeat, command line and run folder of every process."""
    raymine = (sys.executable, "-m", "raymine.cli")
    for repeat in range(request.repeats):
        run = folder / f"run-{repeat}"
        yield "floor", repeat, (sys.executable, "-c", _FLOORS[device]), run
        model = _flags(recipe=request.recipe, device=device, downscale=request.downscale)
        limits = _flags(max_seconds=request.seconds, out=run)
        yield "train", repeat, (*raymine, "train", str(request.scene), *model, *limits), run
        yield "eval", repeat, (*raymine, "eval", run), run
        if request.frames:
            yield "render", repeat, (*raymine, "render", run, *_flags(path="orbit", frames=request.frames)), run


def _flags(**options: str | float | Path) -> tuple[str, ...]:
    """Options as words of a command line."""
    return tuple(word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value)))


def _time(line: Sequence[str | Path]) -> float:
    """Seconds from the start of a process to its exit. `RunError` with its last words if it fails."""
    started = time.perf_counter()
    done = subprocess.run([str(part) for part in line], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        said = done.stderr.strip()[-2000:]
        raise RunError(f"`{' '.join(str(part) for part in line[2:])}` ended with code {done.returncode}: {said}")
    return seconds


def _stages_of(run: Path, seconds: float) -> tuple[dict[str, float], float | None]:
    """Seconds of each stage of a finished run, `exit` last, and until its first steps were done."""
    attempt = RunDir.open(run).read_manifest().attempts[-1]
    return {**attempt.stages, "exit": round(seconds - (attempt.wall or 0.0), 3)}, attempt.first_step
