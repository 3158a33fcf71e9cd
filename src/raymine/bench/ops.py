"""The ops benchmark: the time of each op on each backend, relative to the plain-torch reference, as JSON rows.

The time of a call includes checks, allocations and launches. Backends take turns, so that a machine that slows down
affects all of them. Before the timing, kernels are compiled and results are compared.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from raymine.errors import ConfigError, RaymineError, ResourceError, option
from raymine.experiment.memory import memory_errors
from raymine.experiment.prepare import resolve_device
from raymine.kernels import dispatch
from raymine.rundir import Environment, describe_environment

from ._op_cases import MAKERS
from ._op_inputs import Case, Named, Sizes
from .rows import StageProgress, append_rows, require_rows_file

OPS = tuple(MAKERS)
"""The names of all ops, in the order in which they are timed."""

LEAST, MOST = 3, 100
"""The smallest and the largest number of repeats of a backend."""

_BLOCK_SECONDS, _BLOCK_MOST = 0.1, 25
"""The length of a backend's turn in seconds, and the most calls in it."""

_SETTLE_MS = 20.0
"""If a call takes fewer milliseconds than this, a turn starts with one call that does not count: the caches hold data
of the previous backend, and threads of that backend may still be spinning."""

TimedCall = Callable[[], Named]
Times = dict[dispatch.Backend, list[float]]


@dataclass(frozen=True)
class OpsRequest:
    """An ops benchmark as the user asks for it.

    ops: names separated by commas; None: all of `OPS`. samples: per batch; None: 2^18 on CUDA and 2^14 on a CPU. out: a
    file to append rows to. seconds: of timing per op, direction and shape, unless `LEAST` repeats take longer.
    """

    ops: str | None = None
    samples: int | None = None
    device: str = "auto"
    out: Path | None = None
    seconds: float = 2.0

    def __post_init__(self) -> None:
        parse_ops(self.ops)
        if self.samples is not None and not 1 <= self.samples <= 1 << 22:
            raise ConfigError(f"{option('samples')} must be in 1 .. 2^22, got {self.samples}.")
        require_rows_file(self.out)


@dataclass(frozen=True)
class OpRow:
    """One op in one direction, at one shape, on one backend.

    reason: why `dispatch` chooses this backend, or "forced" if it chooses another. low_ms, high_ms: quartiles.
    ratio_to_reference: median time of the reference / median time of this backend. gbytes_per_s: bytes that must move
    (see `bench/_op_cases.py`) in 10^9 per second; None if they are not known. checked: the largest deviation of a
    result from the reference, |a - b| / |b|, on the timed inputs.
    """

    benchmark: str
    op: str
    direction: str
    backend: str
    reason: str
    environment: Environment
    shapes: dict[str, int]
    repeats: int
    median_ms: float
    low_ms: float
    high_ms: float
    ratio_to_reference: float
    gbytes_per_s: float | None
    checked: float


def parse_ops(text: str | None) -> tuple[str, ...]:
    """ "march,adam" -> names in the order of `OPS`; None: all of them. `ConfigError` for an unknown name."""
    if text is None:
        return OPS
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in OPS:
            close = difflib.get_close_matches(name, OPS, n=1)
            meant = f" Did you mean `{close[0]}`?" if close else ""
            raise ConfigError(f"{option('ops')}: there is no op `{name}`.{meant}", hint=f"Ops: {', '.join(OPS)}.")
    if not names:
        raise ConfigError(f"{option('ops')} names no op.", hint=f"Ops: {', '.join(OPS)}.")
    return tuple(name for name in OPS if name in names)


def bench_ops(request: OpsRequest, progress: StageProgress = lambda *_: None) -> list[OpRow]:
    """Time the requested ops; each row is written when it is complete.

    `RaymineError` if a backend's result deviates from the reference: the time of a wrong result means nothing.
    """
    device = resolve_device(request.device)
    sizes = _sizes(request.samples, device)
    environment = describe_environment(device)
    makers = [(op, maker) for op in parse_ops(request.ops) for maker in MAKERS[op]]
    rows: list[OpRow] = []
    for done, (op, maker) in enumerate(makers):
        progress(op, done, len(makers))
        try:
            with memory_errors(device):
                case = maker(sizes)
                found = _measure(op, case, request.seconds, device, environment)
        except ResourceError as error:
            raise ResourceError(f"{op}: {error.message}", hint=f"Try fewer {option('samples')}.") from error
        append_rows(request.out, found)
        rows += found
    return rows


def _sizes(samples: int | None, device: torch.device) -> Sizes:
    if device.type == "cpu":
        return Sizes(samples or 1 << 14, log2_entries=16, resolution=64, device=device)
    return Sizes(samples or 1 << 18, log2_entries=19, resolution=128, device=device)


def _measure(op: str, case: Case, seconds: float, device: torch.device, environment: Environment) -> list[OpRow]:
    """The rows of one case, the reference first."""
    usual = dispatch.explain_one(op, device.type)
    backends: tuple[dispatch.Backend, ...] = tuple(dict.fromkeys(("reference", usual.backend)))
    runs: dict[dispatch.Backend, TimedCall] = {}
    results: dict[dispatch.Backend, Named] = {}
    for backend in backends:
        with dispatch.force(backend):
            runs[backend] = case.prepare()
            results[backend] = case.compared(runs[backend]())
    checked = {name: _check(f"{op} ({case.direction})", name, results, case.bound) for name in backends}
    results.clear()
    times = take_turns(runs, seconds, device)
    median = {name: float(np.median(found)) for name, found in times.items()}
    rows = []
    for name, found in times.items():
        low, high = np.quantile(found, (0.25, 0.75))
        rows.append(
            OpRow(
                benchmark="ops",
                op=op,
                direction=case.direction,
                backend=name,
                reason=usual.reason if name == usual.backend else "forced",
                environment=environment,
                shapes=case.shapes,
                repeats=len(found),
                median_ms=median[name],
                low_ms=float(low),
                high_ms=float(high),
                ratio_to_reference=median["reference"] / median[name],
                gbytes_per_s=None if case.moved is None else case.moved / median[name] / 1e6,
                checked=checked[name],
            )
        )
    return rows


def _check(what: str, backend: dispatch.Backend, results: Mapping[dispatch.Backend, Named], bound: float) -> float:
    """The largest deviation of a backend's results; `RaymineError` if it exceeds the bound."""
    expected = results["reference"]
    largest = max((deviation(results[backend].get(name), expected[name]), name) for name in expected)
    # Written so that NaN, for which every comparison is false, is refused too.
    if not largest[0] <= bound:
        raise RaymineError(
            f"{what} on `{backend}`: `{largest[1]}` deviates from the reference by {largest[0]:.3g} of its norm; at "
            f"most {bound:g} is allowed. The time of a wrong result is worth nothing, so there is none.",
            hint="This is a bug of the kernel. Please report it with the output of `raymine doctor`.",
        )
    return largest[0]


def deviation(found: torch.Tensor | None, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|; infinite if the result is missing, has another shape or is not finite."""
    if found is None or found.shape != expected.shape:
        return math.inf
    wanted = expected.detach().double()
    distance = float((found.detach().double() - wanted).norm())
    if not math.isfinite(distance):
        return math.inf
    return distance / max(float(wanted.norm()), 1e-30) if distance else 0.0


def take_turns(runs: Mapping[dispatch.Backend, TimedCall], seconds: float, device: torch.device) -> Times:
    """Milliseconds of each call of every backend. The backends must be compiled already."""
    guess = {}
    for backend, run in runs.items():
        with dispatch.force(backend):
            guess[backend] = clock(run, 1, device)[0]
    times: Times = {backend: [] for backend in runs}
    started = time.perf_counter()
    while True:
        for backend, run in runs.items():
            calls = min(_BLOCK_MOST, max(1, int(1e3 * _BLOCK_SECONDS / max(guess[backend], 1e-6))))
            with dispatch.force(backend):
                if guess[backend] < _SETTLE_MS:
                    run()
                times[backend] += clock(run, calls, device)
        fewest = min(len(found) for found in times.values())
        if fewest >= MOST or (fewest >= LEAST and time.perf_counter() - started > seconds):
            return times


def clock(run: TimedCall, calls: int, device: torch.device) -> list[float]:
    """Milliseconds of each of some calls, one after another."""
    if device.type == "cuda":
        # Timed by events: waiting for the device after every call would add to its time.
        marks = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(calls)]
        torch.cuda.synchronize(device)
        for start, end in marks:
            start.record()
            run()
            end.record()
        torch.cuda.synchronize(device)
        return [start.elapsed_time(end) for start, end in marks]
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started))
    return times
