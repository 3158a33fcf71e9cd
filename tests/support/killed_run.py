"""Trains one run through ten SIGKILLs, then lets it finish.

Run as: python -m support.killed_run RUN_FOLDER STEPS SEED [SCENE].

With a scene, this is a real run through `raymine.experiment.train`; without, a fake one of a millisecond per step. The
process imports torch once and forks a child for each attempt, so that an attempt starts quickly. Prints the number of
attempts that were really killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from raymine.config import Every, Schedule
from support.fake_training import Options, train

SCHEDULE = Schedule(metrics=4, checkpoint=Every(steps=3), evaluate=Every(steps=25))
KILLS = 10
TINY = {
    "field.grid.levels": 2,
    "field.grid.log2_entries": 8,
    "field.grid.finest": 32,
    "sampler.resolution": 8,
    "sampler.step": 0.2,
    "batch.samples": 256,
}


def options(steps: int, sleep: float = 0.0) -> Options:
    return Options(steps=steps, schedule=SCHEDULE, evaluate=True, split="held-out", sleep=sleep)


def train_fake(path: Path, steps: int) -> None:
    train(path, options(steps, sleep=0.001))


def train_real(path: Path, steps: int, scene: Path) -> None:
    from raymine.experiment import TrainRequest
    from raymine.experiment import train as train_run

    train_run(TrainRequest(scene, out=path, resume=True, steps=steps, device="cpu", overrides=TINY, evaluate_views=1))


def live(life: Callable[[], None], deadline: float | None) -> bool:
    """Run `life` in a child process; returns whether it was killed after `deadline` seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            life()
            code = 0
        finally:
            # The child must neither flush the parent's buffers nor run its exit handlers.
            os._exit(code)
    if deadline is not None:
        time.sleep(deadline)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit("a life of the run failed")
    return False


def main() -> None:
    path, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    draw = random.Random(int(sys.argv[3]))
    if len(sys.argv) > 4:
        life, longest = partial(train_real, path, steps, Path(sys.argv[4])), 3.0
    else:
        life, longest = partial(train_fake, path, steps), 0.12
    killed = sum(live(life, draw.uniform(0.04 * longest, longest)) for _ in range(KILLS))
    live(life, None)
    print(killed)


if __name__ == "__main__":
    main()
