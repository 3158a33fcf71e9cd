"""What the table and the page of a sweep say about its points, in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from raymine.files import JSON

from ..sweep import Row, Trial
from ..sweep_spec import Point, Sweep


def value(given: JSON) -> str:
    """A value of a setting."""
    return f"{given:.4g}" if isinstance(given, float) else str(given)


def settings(point: Point) -> str:
    return ", ".join(f"{name} = {value(given)}" for name, given in point.items())


def varied(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """The settings in which the points differ."""
    return [name for name in sweep.space if len({repr(row.settings[name]) for row in rows}) > 1]


def stops(row: Row) -> list[JSON]:
    """Step and PSNR of the pruned trials of a point."""
    return [trial.result["pruned"] for trial in row.trials if trial.result.get("pruned")]


def state(row: Row) -> str:
    """What became of a point that has no score; "" of a finished one."""
    states = {trial.state for trial in row.trials}
    if not states <= {"done", "skipped"}:
        return "failed" if "failed" in states else "not reached"
    return ", ".join(f"pruned at step {stop['step']} ({stop['psnr']:.2f} dB)" for stop in stops(row))


def trained_seconds(row: Row) -> float | None:
    """Mean training time of the trials of a point."""
    seconds = [float(trial.result["elapsed"]) for trial in row.trials if trial.result.get("elapsed") is not None]
    return sum(seconds) / len(seconds) if seconds else None


def best_trial(row: Row) -> Trial:
    """The trial of a finished point with the highest score among its seeds."""
    return max(row.trials, key=lambda trial: trial.score or 0.0)


def counts(rows: Sequence[Row]) -> str:
    """How many points have finished, and what became of the others."""
    finished = sum(row.score is not None for row in rows)
    pruned = sum(state(row).startswith("pruned") for row in rows)
    failed = sum(state(row) == "failed" for row in rows)
    parts = [f"{finished} of {len(rows)} {'point has' if len(rows) == 1 else 'points have'} finished"]
    parts += [f"{pruned} {'was' if pruned == 1 else 'were'} pruned"] if pruned else []
    parts += [f"{failed} failed"] if failed else []
    left = len(rows) - finished - pruned - failed
    parts += [f"{left} {'was' if left == 1 else 'were'} not reached"] if left else []
    return f"{', '.join(parts)}."


def verdict(rows: Sequence[Row]) -> list[str]:
    """Sentences about the best point; `rows` come best first."""
    if not rows or rows[0].score is None:
        return ["No point has a score yet. The same command goes on with the rest."]
    best = rows[0]
    told = [f"The best setting is {settings(best.settings)}, with {best.score:.2f} dB on the held-out views."]
    second = rows[1] if len(rows) > 1 else None
    if second is None or second.score is None or best.score is None:
        return told
    ahead = best.score - second.score
    told.append(f"It is {ahead:.2f} dB ahead of the second, {settings(second.settings)}.")
    if best.spread is None:
        told.append("With one seed it is not known how much of this is chance; more seeds in the file would tell.")
    elif ahead < max(best.spread, second.spread or 0.0):
        told.append("This is less than the spread over seeds, so the order of the two may be chance.")
    return told


def evaluation(row: Row) -> str:
    """The command that scores the test views of a finished point."""
    return f"raymine eval {shlex.quote(str(best_trial(row).result['run']))}"
