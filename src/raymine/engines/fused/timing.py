"""Timing of the stages of a fused step."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from raymine.engines.fused.stages import ask_field, march_rays
from raymine.engines.fused.trainer import RING, FusedTrainer

_REPEAT, _ROUNDS = 20, 9


def stage_times(trainer: FusedTrainer) -> dict[str, float]:
    """Median time of every stage in milliseconds, for the current state. Each stage is replayed as its own CUDA graph.

    Discard the state afterwards: stages are repeated on the same samples, which changes the parameters.
    """
    b, stop = trainer.buffers, trainer.state.config.mining.stop
    trainer.run_stages()

    def infer() -> None:
        b.queue.zero_()
        ask_field(b, trainer.model, stop)

    def update() -> None:
        trainer.add_up()
        trainer.update()

    stages: dict[str, Callable[[], None]] = {
        "draw": trainer.draw,
        "march": lambda: march_rays(b, trainer.grid, trainer.n_rays),
        "infer": infer,
        "judge": trainer.judge,
        "select": trainer.select,
        "train": trainer.train,
        "adam": update,
        "grid, all cells": lambda: trainer.grid.update(trainer.model, True),
        "grid, some cells": lambda: trainer.grid.update(trainer.model, False),
    }
    stream = torch.cuda.Stream(trainer.state.device)
    return {name: _median(work, stream) for name, work in stages.items()}


def _median(work: Callable[[], None], stream: torch.cuda.Stream) -> float:
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(_REPEAT):
            work()
    times = []
    for _ in range(_ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / _REPEAT)
    return sorted(times)[_ROUNDS // 2]


def busy_share(trainer: FusedTrainer, bursts: int = 5) -> float:
    """Fraction of the wall-clock time of training in which the device is busy.

    It is the device time of the same number of steps, replayed back to back, divided by the time that training takes.
    """
    for _ in range(2):
        trainer.advance(RING)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(bursts):
        trainer.advance(RING)
    wall = time.perf_counter() - started
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    trainer.replay_only(bursts * RING)
    end.record()
    torch.cuda.synchronize()
    trainer.reload()
    return start.elapsed_time(end) / 1e3 / wall
