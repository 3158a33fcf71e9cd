"""Peak memory of one training step.

The peak is of everything that a step allocates: samples, features, activations, the graph and gradients. What existed
before does not count: parameters, moments, images, the occupancy grid. The step is one without an update of the
occupancy grid, whose cost is the same for every policy.

On CUDA this is torch's own peak counter. On a CPU there is no counter, and arrays come from two allocators. torch's
allocations are the running total of the memory events of its profiler; those of NumPy and Python come from
`tracemalloc`. The two peaks are added. The sum is exact if they coincide and too high otherwise, never too low.
Compiled kernels allocate all their arrays through NumPy, so they are counted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from raymine.config import replace_fields
from raymine.contracts import Scalars, StepReport
from raymine.samplers import OccupancySampler
from raymine.step import TrainData, TrainState, create_state, train_step

from .records import StepMemory

T = TypeVar("T")


def step_memory(state: TrainState, data: TrainData) -> StepMemory:
    """Measure a step of `state`, and the same step (same batch, same samples) with the policy `none`.

    The tensors of the state are restored afterwards.
    """
    tensors = {name: value.detach().clone() for name, value in state.tensors().items()}
    scalars = {**state.scalars(), "step": _quiet_step(state)}
    plain = replace_fields(state.config, {"mining.policy": "none"})
    twin = create_state(plain, data, seed=state.seed, device=state.device)
    (policy, report), (none, _) = (_measure(each, data, tensors, scalars) for each in (state, twin))
    state.restore(tensors, scalars)
    return StepMemory(policy, none, report.rays, report.marched, report.trained)


def _quiet_step(state: TrainState) -> int:
    """The next step without an update of the occupancy grid; the next step, if every step updates it."""
    sampler, steps = state.sampler, range(state.step, state.step + 2)
    if not isinstance(sampler, OccupancySampler):
        return state.step
    return next((step for step in steps if not sampler.due(step)), state.step)


def _measure(
    state: TrainState, data: TrainData, tensors: dict[str, Tensor], scalars: Scalars
) -> tuple[int, StepReport]:
    own = {name: tensors[name] for name in state.tensors()}
    # Run the step twice: allocations that are made once and kept (a compiled kernel, a cache) do not count.
    state.restore(own, scalars)
    train_step(state, data)
    state.restore(own, scalars)
    return peak_bytes(lambda: train_step(state, data), state.device)


def peak_bytes(work: Callable[[], T], device: torch.device) -> tuple[int, T]:
    """Peak bytes that `work` allocates on `device`, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, result
    activities = [torch.profiler.ProfilerActivity.CPU]
    # Tracing comes last: the profiler imports a great deal when it starts, which tracing makes several times slower.
    with (
        _silent(),
        torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile,
        _traced(),
    ):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = work()
        arrays = tracemalloc.get_traced_memory()[1] - before
    return arrays + _torch_peak(profile), result


@contextlib.contextmanager
def _traced() -> Iterator[None]:
    """Trace Python and NumPy allocations; if they are traced already, leave it so."""
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def _torch_peak(profile: torch.profiler.profile) -> int:
    """The largest running total of torch's allocations and frees in a profile."""
    results = getattr(profile.profiler, "kineto_results", None)
    events = [] if results is None else [event for event in results.events() if event.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress messages of the profiler, which writes to file descriptor 2 and not to `sys.stderr`."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
