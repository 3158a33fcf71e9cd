"""Fuzz of public callables: valid arguments are damaged one by one, and every call runs in a worker process.

A `Case` names a callable and makes valid arguments for it. `trials` lists the damages: wrong shapes, types and devices,
values out of range, NaN, empty and non-contiguous tensors. The verdict of a call is one of

    refused    a RaymineError, or a TypeError or ValueError whose message names an argument
    answered   a result that equals the one of the plain-torch reference, or that has the property of the case. With
               NaN or infinity in the arguments: not finite somewhere if the reference is not
    failed     anything else: another exception, a wrong result, a write outside of a tensor, a crash, a hang

`run_suite` starts the worker (`fuzz_worker`), notices its end or its silence, and continues after the call that caused
it. A module of cases holds a list `CASES`. `fuzz_results` compares results; `fuzz_coverage` finds callables
without a case.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

Args = dict[str, Any]
"""Arguments of a call by name. Fields of records have names of their own, so that each of them can be damaged."""


class Size(NamedTuple):
    """How large the valid arguments of a case are: rays, and samples of all rays together (or points, rows, ...)."""

    rays: int
    samples: int


USUAL = Size(5, 23)
SIZES = (USUAL, Size(1, 1), Size(3, 0), Size(0, 0))


@dataclass(frozen=True)
class Case:
    """A public callable, with valid arguments for it.

    covers: full names of the callables that `run` calls, for instance "raymine.kernels.scan.op.running_sum".
    make: (generator, size) -> valid arguments. Tensors are damaged, and so are numbers; other values are left alone.
    run: called with these arguments by keyword. It puts records together, calls the callable and returns the result.
    gradients: arguments in which the result is differentiable. inplace: arguments that the call may change.
    close: largest deviation from the reference, relative to the largest value of a result (and to 1).
    holds: what is wrong with a result, or "". It replaces the comparison with the reference, for callables without one.
    without: labels of trials to leave out ("stop = nan"); the reason is written next to them.
    label: tells cases of one callable apart.
    """

    covers: tuple[str, ...]
    make: Callable[[torch.Generator, Size], Args]
    run: Callable[..., Any]
    gradients: tuple[str, ...] = ()
    inplace: tuple[str, ...] = ()
    close: float = 1e-4
    holds: Callable[[Args, Any], str] | None = None
    without: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = SIZES
    label: str = ""

    @property
    def name(self) -> str:
        """The first callable that the case covers, without the package."""
        return self.covers[0].removeprefix("raymine.") + (f"[{self.label}]" if self.label else "")


@dataclass(frozen=True)
class Trial:
    """One call of a case. damage: what is done to its arguments. backward: how gradients arrive; "" for none."""

    case: Case
    label: str
    size: Size
    damage: tuple[Damage, ...] = ()
    backward: str = ""

    @property
    def name(self) -> str:
        """Name of the case, then what is done to its arguments."""
        return f"{self.case.name}: {self.label}" + (f", backward ({self.backward})" if self.backward else "")

    def arguments(self) -> Args:
        """The damaged arguments. Each call makes them anew, with the same values."""
        rng = torch.Generator().manual_seed(zlib.crc32(f"{self.case.name} {self.size}".encode()))
        args = self.case.make(rng, self.size)
        for damage in self.damage:
            args = {**args, damage.argument: damage.change(args[damage.argument])}
        return args


class Damage(NamedTuple):
    """A change of one argument. label: what it does, for the name of the trial."""

    argument: str
    label: str
    change: Callable[[Any], Any]


# ---- damages

EXTREMES = (-1, 2**31, 2**62, -(2**63))
TYPES = (torch.float64, torch.float16, torch.int32, torch.bool, torch.complex64)


def _with_element(value: Any) -> Callable[[Tensor], Tensor]:
    """One element in the middle is replaced, as far as its type can hold the value."""

    def change(tensor: Tensor) -> Tensor:
        out = tensor.clone()
        if out.numel():
            out.view(-1)[out.numel() // 2] = value
        return out

    return change


def _strided(tensor: Tensor) -> Tensor:
    """The same values, every second element of a larger tensor."""
    wide = tensor.new_zeros((*tensor.shape, 2))
    wide[..., 0] = tensor
    return wide[..., 0]


def _transposed(tensor: Tensor) -> Tensor:
    """The same values with the first dimension fastest in memory."""
    order = tuple(range(tensor.ndim))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def _expanded(tensor: Tensor) -> Tensor:
    """The first row, repeated by a stride of 0."""
    return tensor[:1].expand(tensor.shape) if tensor.shape[0] else tensor


def tensor_damages(name: str, tensor: Tensor) -> Iterator[Damage]:
    """Every damage of one tensor."""
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "one row less": lambda t: t[:-1],
        "one row more": lambda t: torch.cat((t, t[-1:])) if len(t) else t.new_zeros(1, *t.shape[1:]),
        "no rows": lambda t: t[:0],
        "one row": lambda t: t[:1],
        "a dimension more": lambda t: t[..., None],
        "a dimension less": lambda t: t.flatten()[: t.shape[0]],
        "no dimension": lambda t: t.flatten()[0] if t.numel() else t.new_zeros(()),
        "on meta": lambda t: t.to("meta"),
        "strided": _strided,
        "expanded": _expanded,
    }
    if tensor.ndim == 0:
        changes = {key: changes[key] for key in ("a dimension more", "on meta")}
    if tensor.ndim > 1:
        changes["transposed in memory"] = _transposed
        changes["a column less"] = lambda t: t[..., :-1]
        changes["transposed"] = lambda t: t.transpose(0, -1)
    for dtype in TYPES:
        if dtype != tensor.dtype:
            changes[f"as {dtype}".replace("torch.", "")] = lambda t, dtype=dtype: t.to(dtype)
    if tensor.is_floating_point():
        for value in (torch.nan, torch.inf, -torch.inf):
            changes[f"one {value}"] = _with_element(value)
            changes[f"all {value}"] = lambda t, value=value: torch.full_like(t, value)
        changes["negative"] = lambda t: -t.abs() - 1
        changes["huge"] = lambda t: t * 1e30
    elif tensor.dtype in (torch.int64, torch.int32):
        n = tensor.numel()
        most = torch.iinfo(tensor.dtype)
        for value in (*EXTREMES, 0, n, n + 1, USUAL.samples, USUAL.samples + 1):
            if most.min <= value <= most.max:
                changes[f"one {value}"] = _with_element(value)
                changes[f"all {value}"] = lambda t, value=value: torch.full_like(t, value)
        changes["one larger"] = lambda t: _with_element(int(t.view(-1)[t.numel() // 2]) + 1)(t) if t.numel() else t
        changes["reversed"] = lambda t: t.flip(0)
    for label, change in changes.items():
        yield Damage(name, label, change)


def number_damages(name: str, number: float) -> Iterator[Damage]:
    """Every damage of a plain number."""
    values: tuple[float, ...] = (*EXTREMES, 0, number + 1)
    if isinstance(number, float):
        values = (*values, float("nan"), float("inf"), -float("inf"), 0.5)
    for value in values:
        yield Damage(name, f"= {value}", lambda _, value=value: value)


def damages(args: Args) -> list[Damage]:
    """Every damage of every tensor and number."""
    found: list[Damage] = []
    for name, value in args.items():
        if isinstance(value, Tensor):
            found.extend(tensor_damages(name, value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.extend(number_damages(name, value))
    return found


PAIRS = 12
"""Pairs of damages of each case, drawn at random: a wrong count that a wrong `first` makes up for, and so on."""


def trials(case: Case) -> Iterator[Trial]:
    """The calls of a case: valid arguments of all sizes, every single damage, and some pairs of damages."""
    how = ("", "strided", "expanded") if case.gradients else ("",)
    for size in case.sizes:
        for backward in how:
            yield Trial(case, f"{size.rays} rays, {size.samples} samples", size, (), backward)
    single = damages(Trial(case, "", USUAL).arguments())
    for damage in single:
        label = f"{damage.argument} {damage.label}"
        if label not in case.without:
            for backward in how[:2]:
                yield Trial(case, label, USUAL, (damage,), backward)
    rng = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    for _ in range(PAIRS if len({each.argument for each in single}) > 1 else 0):
        one, two = (single[int(torch.randint(len(single), (), generator=rng))] for _ in range(2))
        labels = [f"{each.argument} {each.label}" for each in (one, two)]
        if one.argument != two.argument and not set(labels) & set(case.without):
            yield Trial(case, " and ".join(labels), USUAL, (one, two), how[-1])


def suite_trials(suite: str) -> list[Trial]:
    """All trials of a module of cases, in a fixed order."""
    return [trial for case in importlib.import_module(suite).CASES for trial in trials(case)]


# ---- the worker, from the outside


class Report(NamedTuple):
    """Outcome of a suite. failures: "trial: what happened" for each failed one."""

    refused: int
    answered: int
    failures: list[str]

    def __str__(self) -> str:
        total = self.refused + self.answered + len(self.failures)
        return f"{total} calls: {self.refused} refused, {self.answered} answered, {len(self.failures)} failed"


SILENCE = 120.0
"""Seconds without a word from the worker after which its call counts as hanging. Compilation is the longest silence."""


class _Worker:
    """A worker process and the lines that it writes. Lines are read by a thread, so that waiting for one can end."""

    def __init__(self, suite: str, start: int, env: Mapping[str, str]) -> None:
        path = os.pathsep.join(part for part in sys.path if part)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.fuzz_worker", suite, str(start)],
            # Threads of kernels that wait for one another sleep, instead of keeping a core busy.
            env={**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.complaints: list[str] = []
        self.readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines.put, True)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.complaints.append, False)),
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(pipe: Any, put: Callable[[str], None], mark_end: bool) -> None:
        for line in pipe:
            put(line)
        if mark_end:
            put("")

    def end(self) -> str:
        """Stop the process if it still runs. -> how it ended, with the last words that it wrote."""
        if self.process.stdout is None or self.process.stdout.closed:
            return ""
        self.process.kill()
        code = self.process.wait()
        for reader, pipe in zip(self.readers, (self.process.stdout, self.process.stderr), strict=True):
            reader.join()
            assert pipe is not None
            pipe.close()
        said = "".join(self.complaints)[-1500:].strip()
        return f"exit code {code}" + (f"\n{said}" if said else "")


def run_suite(suite: str, env: Mapping[str, str] | None = None, silence: float = SILENCE) -> Report:
    """Run every trial of a module of cases in worker processes, with environment variables `env`."""
    return run_suites((suite,), env, silence)[suite]


def run_suites(
    suites: Sequence[str], env: Mapping[str, str] | None = None, silence: float = SILENCE
) -> dict[str, Report]:
    """As `run_suite` for several modules of cases, whose worker compiles what they share once."""
    owners = [suite for suite in suites for _ in suite_trials(suite)]
    names = [trial.name for suite in suites for trial in suite_trials(suite)]
    verdicts: Counter[tuple[str, str]] = Counter()
    failures: list[tuple[str, str]] = []
    at = 0
    while at < len(names):
        worker = _Worker("+".join(suites), at, env or {})
        ready = worker.lines.get(timeout=SILENCE)
        assert ready, f"the worker did not start: {worker.end()}"
        while at < len(names):
            try:
                line = worker.lines.get(timeout=silence)
                fault = "" if line else "the process ended"
            except queue.Empty:
                fault = f"no answer for {silence:g} s"
            if fault:
                failures.append((owners[at], f"{names[at]}: {fault}; {worker.end()}"))
                at += 1
                break
            said = json.loads(line)
            if "begin" in said:
                assert said["begin"] == names[at], f"the worker runs {said['begin']} instead of {names[at]}"
                continue
            verdicts[owners[at], said["verdict"]] += 1
            if said["verdict"] == "failed":
                failures.append((owners[at], f"{names[at]}: {said['note']}"))
            at += 1
        worker.end()
        assert len(failures) < 1000, "\n".join(failure for _, failure in failures[:20])
    return {
        suite: Report(
            verdicts[suite, "refused"], verdicts[suite, "answered"], [words for own, words in failures if own == suite]
        )
        for suite in suites
    }


def require_sound(report: Report, at_least: int) -> None:
    """Fail with the list of failures, or if fewer than `at_least` calls were made."""
    print(report)
    shown = "\n".join(report.failures[:60])
    assert not report.failures, f"{report}\n{shown}"
    assert report.refused + report.answered >= at_least, f"only {report}"
    assert report.refused > 0, report
    assert report.answered > 0, report
