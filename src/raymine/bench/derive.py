"""Derived results of the mining benchmark: mean curves over seeds, speed-ups, losses at equal iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .records import BenchRun, Speedup, Stat, Summary, Trace

BINS = 40
"""Number of equal intervals of iterations over which losses are averaged before they are compared."""

SHARES = (0.02, 0.04, 0.07, 0.11, 0.16, 0.25, 0.35, 0.5, 0.625, 0.75, 0.875, 1.0)
"""When runs are evaluated, as shares of the budget: denser early, where PSNR changes, and at the table's quarters."""


class Curve(NamedTuple):
    """PSNR (dB) over training seconds, ascending."""

    seconds: np.ndarray
    psnr: np.ndarray


def curve_of(run: BenchRun, budget: float) -> Curve:
    """PSNR of a run at the nominal times, interpolated, because evaluations come when a burst of steps has ended."""
    known = [(look.seconds, look.psnr) for look in run.looks if look.psnr is not None]
    if not known:
        return Curve(np.empty(0), np.empty(0))
    seconds, psnr = np.array(known, dtype=float).T
    # Do not extrapolate to times before the first evaluation.
    nominal = np.array([share * budget for share in SHARES])
    moments = nominal[nominal >= seconds[0] - 0.01 * budget]
    return Curve(moments, np.interp(moments, seconds, psnr))


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, at the times that all curves have."""
    curves = [curve for curve in curves if len(curve.seconds)]
    if not curves:
        return Curve(np.empty(0), np.empty(0))
    moments = max((curve.seconds for curve in curves), key=lambda s: s[0])
    return Curve(moments, np.mean([np.interp(moments, *curve) for curve in curves], axis=0))


def reached(curve: Curve, target: float) -> float | None:
    """The first time (s) at which a curve reaches `target` dB, linear between its points; None if it never does."""
    above = np.nonzero(curve.psnr >= target)[0]
    if not len(above):
        return None
    at = int(above[0])
    if at == 0:
        return float(curve.seconds[0])
    low, high = curve.psnr[at - 1], curve.psnr[at]
    part = (target - low) / (high - low)
    return float(curve.seconds[at - 1] + part * (curve.seconds[at] - curve.seconds[at - 1]))


def speedup(own: Sequence[Curve], baseline: Sequence[Curve], budget: float, names: tuple[str, str]) -> Speedup:
    """How much sooner `own` (one curve per seed) reaches the PSNR that `baseline` has at the end of the budget."""
    name, other = names
    reference = mean_curve(baseline)
    if not len(reference.psnr):
        return Speedup(None, None, None, (), f"{other} has no PSNR to compare with.")
    target = float(reference.psnr[-1])
    if name == other:
        return Speedup(1.0, target, budget, (1.0,) * len(own), f"{other} is the baseline.")
    curve = mean_curve(own)
    moment = reached(curve, target)
    times = [reached(each, target) for each in own]
    seeds = tuple(None if time is None else budget / time for time in times)
    where = f"the {target:.2f} dB that {other} has after {budget:g} s"
    if moment is None:
        best = f"; its best is {float(curve.psnr.max()):.2f} dB" if len(curve.psnr) else ""
        return Speedup(None, target, None, seeds, f"{name} never reaches {where}{best}.")
    first = " at its first evaluation, so this is a lower bound" if moment <= curve.seconds[0] else ""
    return Speedup(budget / moment, target, moment, seeds, f"{name} reaches {where} in {moment:.1f} s{first}.")


def binned_loss(trace: Trace, edges: np.ndarray) -> np.ndarray:
    """Mean loss between neighbouring `edges` (iterations). Blocks of the trace are weighted by their overlap."""
    ends = np.array((0, *trace.step), dtype=float)
    total = np.concatenate(([0.0], np.cumsum(np.array(trace.loss) * np.diff(ends))))
    return np.diff(np.interp(edges, ends, total)) / np.diff(edges)


class LossRatio(NamedTuple):
    """Loss / loss of the baseline at equal iteration: ratio [BINS] at the midpoints `step` of intervals."""

    step: np.ndarray
    ratio: np.ndarray


def loss_ratio(own: Sequence[BenchRun], baseline: Sequence[BenchRun]) -> LossRatio | None:
    """The ratio of mean losses over seeds, for the iterations that all runs have; None if there are too few."""
    common = min(run.trace.step[-1] if run.trace.step else 0 for run in (*own, *baseline))
    if common < 2:
        return None
    edges = np.linspace(0, common, min(BINS, common) + 1)
    above, below = (np.mean([binned_loss(run.trace, edges) for run in runs], axis=0) for runs in (own, baseline))
    return LossRatio((edges[1:] + edges[:-1]) / 2, above / np.maximum(below, 1e-12))


def stat(values: Sequence[float | None]) -> Stat | None:
    """Mean and range of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return Stat(sum(known) / len(known), min(known), max(known)) if known else None


def summarise_policies(runs: Sequence[BenchRun], policies: Sequence[str], budget: float) -> tuple[Summary, ...]:
    """One summary per policy that has been trained, in the order of `policies`."""
    groups = {name: [run for run in runs if run.policy == name] for name in policies}
    return tuple(_summary(name, groups, budget) for name in policies if groups[name])


def _summary(name: str, groups: dict[str, list[BenchRun]], budget: float) -> Summary:
    own = groups[name]
    curves = [curve_of(run, budget) for run in own]

    def psnr_at(share: float) -> Stat | None:
        return stat([float(np.interp(share * budget, *curve)) if len(curve.psnr) else None for curve in curves])

    def against(other: str) -> Speedup | None:
        if not groups.get(other):
            return None
        return speedup(curves, [curve_of(run, budget) for run in groups[other]], budget, (name, other))

    ratio = loss_ratio(own, groups["none"]) if groups.get("none") else None
    return Summary(
        policy=name,
        seeds=len(own),
        psnr_quarter=psnr_at(0.25),
        psnr_half=psnr_at(0.5),
        psnr_end=psnr_at(1.0),
        psnr_full=stat([run.psnr for run in own]),
        steps=_known([run.steps for run in own]),
        step_ms=_known([run.step_ms.median for run in own]),
        rays=_known([run.rays for run in own]),
        share=_known([run.share for run in own]),
        memory=_known([run.memory.policy for run in own]),
        memory_saved=_known([1 - run.memory.policy / max(1, run.memory.none) for run in own]),
        speedup_vs_none=against("none"),
        speedup_vs_prune=against("prune"),
        loss_ratio_vs_none=None if ratio is None else float(ratio.ratio[len(ratio.ratio) // 2 :].mean()),
    )


def _known(values: Sequence[float]) -> Stat:
    return Stat(sum(values) / len(values), float(min(values)), float(max(values)))
