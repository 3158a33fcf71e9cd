"""The figures of a sweep: scores by trial and by setting, and curves of held-out PSNR. Each function draws one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raymine.pages.svg import COLOURS, GRID, INK, label_axes, new_figure
from raymine.report.curves import plain_label

from ..prune import Look, looks_of
from ..sweep import Row, Trial
from ..sweep_spec import Range, Sweep
from . import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 6
"""Curves with a colour and a name of their own: those of the best points."""
_MOST_CURVES = 300
_LONGEST = 14


class Curve(NamedTuple):
    """The looks of a trial."""

    label: str
    looks: tuple[Look, ...]


def curves_of(rows: Sequence[Row]) -> list[Curve]:
    """The looks of every trial that has some, best points first; of at most `_MOST_CURVES` trials."""
    trials = [trial for row in rows for trial in row.trials][:_MOST_CURVES]
    found = [Curve(trial.name, looks_of(Path(trial.result["run"]))) for trial in trials if trial.result.get("run")]
    return [curve for curve in found if curve.looks]


def by_trial(rows: Sequence[Row]) -> Figure:
    """Scores in the order in which trials were started."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = new_figure()
    trials = sorted((trial for row in rows for trial in row.trials), key=lambda trial: trial.name)
    ended = [(i, trial.score) for i, trial in enumerate(trials) if trial.score is not None]
    stopped = [(i, trial.result["pruned"]["psnr"]) for i, trial in enumerate(trials) if trial.result.get("pruned")]
    _dots(axes, ended, stopped)
    if ended:
        best = list(accumulate((score for _, score in ended), max))
        axes.step([i for i, _ in ended], best, where="post", color=COLOURS[1], label="best so far", zorder=1)
    label_axes(axes, "trial", "held-out PSNR (dB)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def by_setting(sweep: Sweep, rows: Sequence[Row], name: str) -> Figure:
    """The score of every trial against one of its settings."""
    figure, (axes,) = new_figure(height=2.8)
    trials = [trial for row in rows for trial in row.trials]
    values = [trial.settings[name] for trial in trials]
    if all(type(each) in (int, float) for each in values):
        places = [float(each) for each in values]
        allowed = sweep.space[name]
        if isinstance(allowed, Range) and allowed.log:
            axes.set_xscale("log")
    else:
        kinds = list(dict.fromkeys(sorted(words.value(each) for each in values)))
        places = [float(kinds.index(words.value(each))) for each in values]
        labels = [plain_label(kind if len(kind) <= _LONGEST else f"{kind[: _LONGEST - 1]}…") for kind in kinds]
        axes.set_xticks(range(len(kinds)), labels)
        axes.set_xlim(-0.5, len(kinds) - 0.5)
    ended = [(at, trial.score) for at, trial in zip(places, trials, strict=True) if trial.score is not None]
    stopped = [(at, _stopped_at(trial)) for at, trial in zip(places, trials, strict=True) if trial.result.get("pruned")]
    _dots(axes, ended, stopped)
    label_axes(axes, plain_label(name), "held-out PSNR (dB)", legend=bool(stopped))
    return figure


def by_look(curves: Sequence[Curve]) -> Figure:
    """Held-out PSNR over the looks of each trial: the best named, the others in grey."""
    figure, (axes,) = new_figure()
    for place, curve in enumerate(curves):
        named = place < _NAMED
        axes.plot(
            [look.step for look in curve.looks],
            [look.psnr for look in curve.looks],
            "o-" if len(curve.looks) == 1 else "-",
            color=COLOURS[place] if named else GRID,
            linewidth=1.8 if named else 1.0,
            markersize=3,
            zorder=3 if named else 2,
            label=plain_label(curve.label) if named else None,
        )
    label_axes(axes, "step", "held-out PSNR (dB)")
    legend = axes.get_legend()
    if legend is not None:
        legend.set_ncols(3)
    return figure


def _stopped_at(trial: Trial) -> float:
    return float(trial.result["pruned"]["psnr"])


def _dots(
    axes: Axes, ended: Sequence[tuple[float, float | None]], stopped: Sequence[tuple[float, float | None]]
) -> None:
    """Dots for finished trials, crosses for pruned ones."""
    for points, mark, label, colour in ((ended, "o", "finished", COLOURS[0]), (stopped, "x", "pruned", COLOURS[4])):
        if points:
            across, up = zip(*points, strict=True)
            axes.plot(
                across, up, mark, color=colour, markersize=5, markeredgecolor=None if mark == "x" else INK, label=label
            )
