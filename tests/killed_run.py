"""Trains one fake run through ten SIGKILLs, then lets it finish. Run as: killed_run.py RUN_FOLDER STEPS SEED.

The process imports torch once and forks a child for each life of the run, so that a life starts in no time. Prints the
number of lives that were really cut short.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from fake_training import Options, train
from raymine.config import Every, Schedule

SCHEDULE = Schedule(metrics=4, checkpoint=Every(steps=3), evaluate=Every(steps=25))
KILLS = 10


def options(steps: int, sleep: float = 0.0) -> Options:
    return Options(steps=steps, schedule=SCHEDULE, evaluate=True, sleep=sleep)


def live(path: Path, steps: int, deadline: float | None) -> bool:
    """One life; whether it was cut short by the kill after `deadline` seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(path, options(steps, sleep=0.001))
            code = 0
        finally:
            # Neither the parent's buffers nor its exit handlers are the child's to run.
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
    killed = sum(live(path, steps, draw.uniform(0.005, 0.12)) for _ in range(KILLS))
    live(path, steps, None)
    print(killed)


if __name__ == "__main__":
    main()
