"""Measures what the companions of a run cost its training: the monitor, and trackers that hang, fail or are slow.

    python benchmarks/bench_companions.py [SCENE] [--downscale 4] [--turns 15] [--steps 16] [--threads N] [--out FILE]

One state is trained on. In every turn each variant has `--steps` steps, in an order that rotates, so that other
programs and the progress of training affect all of them alike. Trackers get a row every 16 steps, as in a run. The
monitor samples every `--period` seconds, 50 times as often as in a run, which has a 50th of its overhead. One JSON row
per variant: milliseconds per step, processor time of all threads per step, both relative to the steps of the same turn
without companions (medians over turns, with quartiles), and the time that training spends in calls of the companions.
"""

from __future__ import annotations

import argparse
import errno
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from raymine.bench.rows import append_rows
from raymine.contracts import StepReport
from raymine.engines import Engine, engine_for
from raymine.experiment import TrainRequest, open_data
from raymine.experiment.observers import LiveRun, Observers, SilentObserver, StepInfo
from raymine.experiment.prepare import prepare
from raymine.experiment.watchers.machine_watch import MachineWatch
from raymine.experiment.watchers.tracker import Tracker
from raymine.monitor import Monitor
from raymine.rundir import describe_environment
from raymine.step import create_state
from raymine.tracking import SinkThread

ALONE = "alone"
WARM_UP = 100
"""Steps before the first turn: kernels are compiled, and the occupancy grid is no longer full."""
ROW_STEPS = 16
"""Steps between two rows for trackers."""


class Sink:
    """A tracker that does `act` with each row."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def write(self, step: int, values: dict[str, float]) -> None:
        self._act()

    def close(self) -> None:
        return None


def hang() -> None:
    threading.Event().wait()


def fail() -> None:
    raise ConnectionError("the server does not answer")


def fill_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


TRACKERS: dict[str, Callable[[], None]] = {
    "tracker that hangs": hang,
    "tracker that fails": fail,
    "tracker whose disk is full": fill_disk,
    "tracker of 20 ms a row": lambda: time.sleep(0.02),
}
MONITOR = "monitor"


@dataclass
class Timing:
    """Of one variant, a value per turn: seconds and processor seconds per step, seconds in calls per step."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    held_up: list[float] = field(default_factory=list)


def companions(name: str, period: float) -> tuple[Observers, Callable[[], None]]:
    """The observers of a variant, and what closes them."""
    if name == ALONE:
        return Observers([SilentObserver()]), lambda: None
    if name == MONITOR:
        watch = MachineWatch(Monitor(None, period), lambda: 0.0, lambda _: None, on_cpu=True)
        return Observers([watch]), watch.close
    sink = SinkThread(name, lambda: Sink(TRACKERS[name]), patience=0.0)
    tracker = Tracker([sink], lambda _: None)
    return Observers([tracker]), tracker.close


def step_info(report: StepReport, elapsed: float) -> StepInfo:
    return StepInfo(
        report.step, float(report.loss), None, report.rays, report.marched, report.trained, report.learning_rate,
        elapsed, 0, 1.0,
    )  # fmt: skip


def no_view(index: int, longest: int, *, unwanted: Callable[[], bool]) -> NoReturn:
    """Stands for `LiveRun.hard_view`, which no companion asks for."""
    raise AssertionError("a companion asked where an image is hard")


def take_turn(engine: Engine, name: str, options: argparse.Namespace, timing: Timing) -> None:
    """Train some steps with the companions of a variant. Opening and closing them happens once a run: not counted."""
    told, close = companions(name, options.period)
    held_up, started, worked = 0.0, time.perf_counter(), time.process_time()
    done = 0
    while done < options.steps:
        reports = engine.advance(options.steps - done)
        done += len(reports)
        elapsed = time.perf_counter() - started
        info = step_info(reports[-1], elapsed)
        live = LiveRun(info.step, elapsed, engine.renderer, no_view)
        begin = time.perf_counter()
        if done % ROW_STEPS == 0:
            told.on_step(info)
        told.on_burst(live)
        held_up += time.perf_counter() - begin
    timing.wall.append((time.perf_counter() - started) / done)
    timing.processor.append((time.process_time() - worked) / done)
    timing.held_up.append(held_up / done)
    close()


def overhead(timing: Timing, alone: Timing) -> dict[str, Any]:
    def relative(values: list[float], others: list[float]) -> dict[str, float]:
        shares = [value / other - 1 for value, other in zip(values, others, strict=True)]
        low, middle, high = statistics.quantiles(shares, n=4)
        return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}

    step = statistics.median(timing.wall)
    return {
        "step_ms": round(1e3 * step, 3),
        "processor_ms": round(1e3 * statistics.median(timing.processor), 3),
        "step_overhead": relative(timing.wall, alone.wall),
        "processor_overhead": relative(timing.processor, alone.processor),
        "held_up_us": round(1e6 * statistics.median(timing.held_up), 2),
        "held_up_share": round(statistics.median(timing.held_up) / step, 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--period", type=float, default=0.2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    prepared = prepare(TrainRequest(options.scene, options.recipe, device=options.device, downscale=options.downscale))
    scene, device = prepared.scene, prepared.device
    names = (ALONE, MONITOR, *TRACKERS)
    timings = {name: Timing() for name in names}
    with open_data(scene, scene.of_split("train"), device, None) as data:
        state = create_state(prepared.config.train, data.train, seed=0, device=device)
        state.horizon = WARM_UP + options.turns * options.steps * len(names)
        engine = engine_for(state, data.train)
        while state.step < WARM_UP:
            engine.advance(1)
        for turn in range(options.turns):
            for i in range(len(names)):
                name = names[(turn + i) % len(names)]
                take_turn(engine, name, options, timings[name])
    environment = describe_environment(device)
    for name in names:
        row = {
            "benchmark": "companions", "scene": Path(options.scene).name, "downscale": options.downscale,
            "variant": name, "engine": engine.name, "turns": options.turns, "steps": options.steps,
            "period": options.period, **overhead(timings[name], timings[ALONE]), "environment": environment,
        }  # fmt: skip
        share, wall = row["processor_overhead"]["median"], row["step_overhead"]["median"]
        print(f"{name}: {row['step_ms']} ms a step ({wall:+.2%}), processor {share:+.2%}, "
              f"held up {row['held_up_us']} us ({row['held_up_share']:.3%})", flush=True)  # fmt: skip
        append_rows(options.out, [row])


if __name__ == "__main__":
    main()
