"""The curves of a report, of one run or of several in one figure. Each function draws a matplotlib figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from raymine.pages.svg import INK, colour_of, dash_of, label_axes, new_figure

from .record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["steps", "time"]
Series = tuple[np.ndarray, np.ndarray, np.ndarray]

_MOST_POINTS = 400
"""Points of a curve. A long run has many thousand rows; means over equal numbers of them are drawn."""


class Curve(NamedTuple):
    """A figure of the report: its id, its heading, its caption, and what draws it."""

    name: str
    title: str
    says: str
    draw: Callable[[], Figure]


def curves_of(runs: Sequence[RunRecord]) -> list[Curve]:
    """The figures for which the runs have data, in reading order."""
    some = [run for run in runs if len(run.series("lr")[0])]
    if not some:
        return []
    made = [
        Curve(
            f"psnr-{against}",
            f"Quality against {against}",
            "Lines: PSNR on the training rays of each step. Dots: quick evaluations on views that are not trained on. "
            + ("" if against == "steps" else "Only training counts as time."),
            partial(_psnr, some, against),
        )
        for against in get_args(Against)
    ]
    made += [
        Curve(
            f"loss-{against}",
            f"Loss against {against}",
            "What training minimises, on a logarithmic axis.",
            partial(_loss, some, against),
        )
        for against in get_args(Against)
    ]
    return made


def mining_curves(runs: Sequence[RunRecord]) -> list[Curve]:
    """Figures of the samples that were trained on."""
    some = [run for run in runs if run.mean_share is not None]
    if not some:
        return []
    return [
        Curve(
            "mining-share",
            "How many samples are trained on",
            "b/B: the share of the samples along the rays that a step trains on. Below, tau: the larger it is, the "
            "more the gradient is concentrated on few samples.",
            lambda: _share(some),
        ),
        Curve(
            "rate",
            "Rays and samples",
            "Above, rays per step: as fewer samples are left on each ray, a step takes more rays. Below, samples that "
            "were marched in a second of training.",
            lambda: _rates(some),
        ),
    ]


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbouring points, so that at most `_MOST_POINTS` are left."""
    if len(x) <= _MOST_POINTS:
        return x, y
    edges = np.linspace(0, len(x), _MOST_POINTS + 1).astype(int)[:-1]
    counts = np.diff(np.append(edges, len(x)))
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def _draw(axes: Axes, runs: Sequence[RunRecord], run: RunRecord, series: Series, against: Against) -> None:
    names = [each.label for each in runs]
    x = series[0] if against == "steps" else series[1]
    style, colour = dash_of(names, run.label), colour_of(names, run.label)
    axes.plot(*thinned(x, series[2]), color=colour, linestyle=style, label=plain_label(run.label))


def plain_label(label: str) -> str:
    """A label that matplotlib shows as it is: it reads $ as mathematics, and leaves out what begins with _."""
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def _below(against: Against) -> str:
    return "step" if against == "steps" else "training time (s)"


def _psnr(runs: Sequence[RunRecord], against: Against) -> Figure:
    figure, (axes,) = new_figure()
    names = [run.label for run in runs]
    for run in runs:
        _draw(axes, runs, run, run.series("psnr"), against)
        for split, mark in (("test", "o"), ("held-out", "s")):
            steps, seconds, values = run.looks(split)
            if len(values):
                x = steps if against == "steps" else seconds
                axes.plot(x, values, mark, color=colour_of(names, run.label), markersize=5, markeredgecolor=INK)
    label_axes(axes, _below(against), "PSNR (dB)", legend=len(runs) > 1)
    return figure


def _loss(runs: Sequence[RunRecord], against: Against) -> Figure:
    figure, (axes,) = new_figure()
    for run in runs:
        _draw(axes, runs, run, run.series("loss"), against)
    axes.set_yscale("log")
    label_axes(axes, _below(against), "loss", legend=len(runs) > 1)
    return figure


def _share(runs: Sequence[RunRecord]) -> Figure:
    figure, (upper, lower) = new_figure(2, sharex=True)
    for run in runs:
        steps, seconds, trained = run.series("trained")
        _, _, marched = run.series("marched")
        if len(marched) == len(trained):
            _draw(upper, runs, run, (steps, seconds, trained / np.maximum(1, marched)), "time")
        tau = run.series("extra.tau")
        if len(tau[2]):
            _draw(lower, runs, run, tau, "time")
    upper.set_ylim(bottom=0)
    label_axes(upper, "", "b/B", legend=len(runs) > 1)
    label_axes(lower, _below("time"), "tau", legend=False)
    return figure


def _rates(runs: Sequence[RunRecord]) -> Figure:
    figure, (upper, lower) = new_figure(2, sharex=True)
    for run in runs:
        _draw(upper, runs, run, run.series("rays"), "time")
        steps, seconds, rate = run.series("samples_per_second")
        _draw(lower, runs, run, (steps, seconds, rate / 1e6), "time")
    upper.set_ylim(bottom=0)
    lower.set_ylim(bottom=0)
    label_axes(upper, "", "rays / step", legend=len(runs) > 1)
    label_axes(lower, _below("time"), "million samples / s", legend=False)
    return figure
