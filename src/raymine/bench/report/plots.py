"""The figures of the page. Each function takes the document and returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from raymine.bench.derive import BINS, binned_loss, curve_of, loss_ratio, mean_curve
from raymine.bench.records import BenchRun, Document, Look
from raymine.mining.diagnose import Histogram
from raymine.pages.svg import INK, colour_of, dash_of, label_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASS_COLOURS = {"empty": "#8d99a6", "surface": "#1f9d63", "occluded": "#7d72e0"}


def groups(document: Document) -> Iterator[tuple[str, list[BenchRun]]]:
    """The policies that have runs, in order, with their runs."""
    for policy in document.setting.policies:
        runs = [run for run in document.runs if run.policy == policy]
        if runs:
            yield policy, runs


def _line(document: Document, axes: Axes, policy: str, x: np.ndarray, lines: Sequence[np.ndarray]) -> None:
    """Plot the mean of `lines` (one per seed) over x, with their range as a band."""
    names = document.setting.policies
    colour, every = colour_of(names, policy), np.array(lines)
    axes.plot(x, every.mean(axis=0), color=colour, linestyle=dash_of(names, policy), label=policy)
    if len(every) > 1:
        axes.fill_between(x, every.min(axis=0), every.max(axis=0), color=colour, alpha=0.2, linewidth=0)


def psnr(document: Document) -> Figure:
    """Held-out PSNR over training seconds."""
    figure, (axes,) = new_figure()
    budget = document.setting.seconds
    for policy, runs in groups(document):
        curves = [curve_of(run, budget) for run in runs]
        moments = mean_curve(curves).seconds
        if len(moments):
            _line(document, axes, policy, moments, [np.interp(moments, *c) for c in curves if len(c.psnr)])
    label_axes(axes, "training time (s)", "held-out PSNR (dB)")
    axes.set_xlim(0, budget)
    return figure


def loss(document: Document) -> Figure:
    """Loss per iteration, and its ratio to the loss of `none`."""
    figure, (upper, lower) = new_figure(2, sharex=True)
    found = dict(groups(document))
    for policy, runs in found.items():
        common = min(run.trace.step[-1] for run in runs)
        edges = np.linspace(0, common, min(2 * BINS, common) + 1)
        _line(document, upper, policy, (edges[1:] + edges[:-1]) / 2, [binned_loss(run.trace, edges) for run in runs])
        ratio = loss_ratio(runs, found["none"]) if "none" in found else None
        if ratio is not None:
            lower.plot(
                ratio.step,
                ratio.ratio,
                color=colour_of(document.setting.policies, policy),
                linestyle=dash_of(document.setting.policies, policy),
                label=policy,
            )
    upper.set_yscale("log")
    label_axes(upper, "", "training loss")
    label_axes(lower, "iteration (step)", "loss / loss of none", legend=False)
    if "none" not in found:
        _say(lower, "none was not trained")
    return figure


def skewness(document: Document) -> Figure:
    """Skewness of the gradient norms over training."""
    figure, (axes,) = new_figure()
    for policy, runs in groups(document):
        _over_time(document, axes, policy, runs, lambda look: look.diagnosis.skewness)
    label_axes(axes, "training time (s)", "skewness of G (no unit)")
    return figure


def share(document: Document) -> Figure:
    """b/B of every step, and tau."""
    figure, (upper, lower) = new_figure(2, sharex=True)
    for policy, runs in groups(document):
        grid = np.linspace(0, document.setting.seconds, 120)
        ratios = [np.interp(grid, r.trace.seconds, np.array(r.trace.trained) / r.trace.marched) for r in runs]
        _line(document, upper, policy, grid, ratios)
        _over_time(document, lower, policy, runs, lambda look: look.diagnosis.tau)
    upper.set_ylim(0, 1.05)
    label_axes(upper, "", "trained / marched, b/B")
    label_axes(lower, "training time (s)", "tau (1 = all alike)", legend=False)
    return figure


def memory(document: Document) -> Figure:
    """Peak memory of a step."""
    found = list(groups(document))
    figure, (axes,) = new_figure(height=0.9 + 0.42 * len(found))
    for row, (policy, runs) in enumerate(found):
        own = sum(run.memory.policy for run in runs) / len(runs) / 2**20
        none = sum(run.memory.none for run in runs) / len(runs) / 2**20
        axes.barh(row, none, color="none", edgecolor=INK, linewidth=0.8, linestyle=":")
        axes.barh(row, own, color=colour_of(document.setting.policies, policy))
        saved = "" if policy == "none" else f" ({100 * (1 - own / max(none, 1e-9)):.0f} % less)"
        axes.annotate(
            f"{own:.1f} MiB{saved}", (max(own, none), row), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(range(len(found)), [policy for policy, _ in found])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.45)
    axes.set_xlim(left=0)
    axes.set_xlabel("peak memory of one step (MiB)")
    return figure


def distributions(document: Document) -> Figure:
    """Pixel losses and sample weights of one batch at the end."""
    figure, (upper, lower) = new_figure(2, height=3.5)
    for policy, runs in groups(document):
        last = [run.looks[-1].diagnosis for run in runs if run.looks]
        if last:
            _steps(document, upper, policy, [each.pixel_loss for each in last])
            _steps(document, lower, policy, [each.weights for each in last])
    label_axes(upper, "squared error of a pixel (colour in 0..1)", "share of rays (%)")
    label_axes(lower, "rendering weight of a sample (no unit)", "share of samples (%)", legend=False)
    return figure


def picked(document: Document) -> Figure:
    """The classes of the trained samples, and the share of each class that is chosen."""
    found = [(policy, [run.looks[-1] for run in runs if run.looks]) for policy, runs in groups(document)]
    figure, (upper, lower) = new_figure(2, height=2.0 + 0.3 * len(found))
    for row, (_, looks) in enumerate(found):
        start = 0.0
        for kind, colour in CLASS_COLOURS.items():
            part = 100 * _count(looks, kind, "chosen") / max(1, sum(_count(looks, k, "chosen") for k in CLASS_COLOURS))
            upper.barh(row, part, left=start, color=colour, label=kind if row == 0 else None)
            start += part
    upper.set_xlim(0, 100)
    upper.set_yticks(range(len(found)), [policy for policy, _ in found])
    upper.invert_yaxis()
    upper.set_xlabel("what the trained samples are (%)")
    upper.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    upper.grid(axis="y", visible=False)
    _picked_shares(document, lower, found)
    return figure


def _picked_shares(document: Document, axes: Axes, found: Sequence[tuple[str, list[Look]]]) -> None:
    width = 0.8 / max(1, len(found))
    for at, (policy, looks) in enumerate(found):
        shares = [100 * _count(looks, k, "chosen") / max(1, _count(looks, k, "all")) for k in CLASS_COLOURS]
        places = np.arange(3) + (at - (len(found) - 1) / 2) * width
        axes.bar(places, shares, 0.92 * width, color=colour_of(document.setting.policies, policy), label=policy)
        for place, value in zip(places, shares, strict=True):
            axes.annotate(f"{value:.0f}", (place, value), (0, 1), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(3), list(CLASS_COLOURS))
    axes.set_ylim(0, 112)
    axes.set_ylabel("picked, of its kind (%)")
    axes.grid(axis="x", visible=False)
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def ray(run: BenchRun) -> Figure:
    """One ray's samples: weight and G along the ray, coloured by G, the chosen ones ringed."""
    figure, (upper, lower) = new_figure(2, sharex=True)
    detail = run.ray
    assert detail is not None
    t, weight, size = (np.array(values) for values in (detail.t, detail.weight, detail.gradient))
    chosen = np.array(detail.chosen, dtype=bool)
    tone = np.sqrt(size / max(float(size.max()), 1e-30))
    positive = size[size > 0]
    floor = max(float(positive.min()), 1e-7 * float(positive.max())) if len(positive) else 1.0
    for axes, values in ((upper, weight), (lower, np.maximum(size, floor))):
        axes.vlines(t, 0 if axes is upper else floor / 2, values, color="#8d99a6", linewidth=0.6)
        marks = axes.scatter(t, values, c=tone, cmap="plasma", vmin=0, vmax=1, s=16, zorder=3)
        axes.scatter(
            t[chosen], values[chosen], s=52, facecolors="none", edgecolors=INK, linewidths=1.1, zorder=4,
            label="chosen to train on",
        )  # fmt: skip
    bar = figure.colorbar(marks, ax=[upper, lower], pad=0.02, aspect=40)
    bar.set_label("importance, sqrt(G / largest G)")
    lower.set_yscale("log")
    lower.set_ylim(bottom=floor / 2)
    label_axes(upper, "", "rendering weight")
    label_axes(lower, "distance along the ray (world units)", "gradient norm G", legend=False)
    return figure


def _count(looks: Sequence[Look], kind: str, which: str) -> int:
    return sum(int(getattr(getattr(look.diagnosis, kind), which)) for look in looks)


def _over_time(
    document: Document, axes: Axes, policy: str, runs: Sequence[BenchRun], value: Callable[[Look], float]
) -> None:
    """Plot a value of each evaluation over training seconds. It is interpolated, because times differ between seeds."""
    runs = [run for run in runs if run.looks]
    if not runs:
        return
    grid = np.array([look.seconds for look in runs[0].looks])
    lines = [np.interp(grid, [k.seconds for k in run.looks], [value(k) for k in run.looks]) for run in runs]
    _line(document, axes, policy, grid, lines)


def _steps(document: Document, axes: Axes, policy: str, found: Sequence[Histogram]) -> None:
    edges = np.array(found[0].edges)
    counts = np.sum([h.counts for h in found], axis=0)
    total = counts.sum() + sum(h.below + h.above for h in found)
    names = document.setting.policies
    axes.stairs(100 * counts / max(1, total), edges, color=colour_of(names, policy), linewidth=1.8, label=policy,
                linestyle=dash_of(names, policy))  # fmt: skip
    axes.set_xscale("log")


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
