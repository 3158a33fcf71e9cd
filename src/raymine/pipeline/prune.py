"""Pruning: a trial whose held-out PSNR falls behind that of others is stopped at one of its looks.

A look is a quick evaluation of held-out views while a trial trains; `metrics.jsonl` of its run has it. Looks count from
1, and trials are compared at the same look. Every trial decides about itself, from the logs in the folder of the sweep.
So pruning needs no connection between trials, and works alike on one machine and on the hosts of a Slurm allocation.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raymine.errors import ConfigError, RunError
from raymine.files import JSON, UnreadableFile, read_json
from raymine.metrics_log import read_rows
from raymine.run_files import METRICS

from .plan import record_file
from .reading import number, require_known

RULES = ("median", "halving")
_KEYS = ("rule", "from_look", "min_trials", "factor")
PRUNE_KEY = ":prune"
"""The key of the pruning rule among the settings of a trial."""


@dataclass(frozen=True)
class Look:
    """A quick evaluation of held-out views. psnr: in dB."""

    step: int
    psnr: float


@dataclass(frozen=True)
class Other:
    """Another trial of the sweep. finished: it trained to its end; False for one that runs or was pruned."""

    looks: tuple[Look, ...]
    finished: bool


@dataclass(frozen=True)
class Prune:
    """When to stop a trial.

    rule: `median` stops a trial whose best look so far is below the median of the finished trials at the same look.
    `halving` (asynchronous successive halving) lets the best 1 / factor of all trials pass looks from_look, from_look *
    factor, and so on. from_look: the first look at which trials are compared. min_trials: for `median`, how many
    finished trials it needs.
    """

    rule: Literal["median", "halving"]
    from_look: int = 1
    min_trials: int = 4
    factor: int = 2

    def reason(self, looks: Sequence[Look], others: Sequence[Other]) -> str:
        """Why a trial with these looks is stopped at the latest one; "" if it goes on."""
        if not looks or len(looks) < self.from_look:
            return ""
        return self._median(looks, others) if self.rule == "median" else self._halving(looks, others)

    def _median(self, looks: Sequence[Look], others: Sequence[Other]) -> str:
        at = len(looks)
        scores = [other.looks[at - 1].psnr for other in others if other.finished and len(other.looks) >= at]
        if len(scores) < self.min_trials:
            return ""
        best, middle = max(look.psnr for look in looks), statistics.median(scores)
        return f"{best:.2f} dB is below the median {middle:.2f} dB of {len(scores)} trials" if best < middle else ""

    def _halving(self, looks: Sequence[Look], others: Sequence[Other]) -> str:
        at, rung = len(looks), self.from_look
        while rung < at:
            rung *= self.factor
        if rung != at:
            return ""
        own = looks[-1].psnr
        scores = sorted([own, *(other.looks[at - 1].psnr for other in others if len(other.looks) >= at)], reverse=True)
        kept = max(1, len(scores) // self.factor)
        better = sum(score > own for score in scores)
        return f"{own:.2f} dB is not among the best {kept} of {len(scores)} trials" if better >= kept else ""


def read_prune(path: Path, value: Any) -> Prune | None:
    """The table [prune] of a sweep file; None without one. `ConfigError` for what is wrong in it."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: [prune] must be a table.", hint='Add [prune] with rule = "median".')
    require_known(path, "[prune]", value, _KEYS)
    rule = value.get("rule", "median")
    if rule not in RULES:
        raise ConfigError(f"{path}: `rule` in [prune] must be {' or '.join(RULES)}, got {rule!r:.80}.")
    for key, of in (("min_trials", "median"), ("factor", "halving")):
        if key in value and rule != of:
            raise ConfigError(f'{path}: `{key}` in [prune] is for rule = "{of}".', hint="Remove it.")
    return Prune(
        rule,
        from_look=int(number(path, value, "from_look", 1, 1, 1000)),
        min_trials=int(number(path, value, "min_trials", 4, 1, 1000)),
        factor=int(number(path, value, "factor", 2, 2, 100)),
    )


def looks_of(run: Path) -> tuple[Look, ...]:
    """The looks of a run so far; () if it has no log that can be read."""
    try:
        rows = read_rows(run / METRICS)
    except RunError:
        return ()
    return tuple(
        Look(int(row["step"]), float(row["psnr"]))
        for row in rows
        if row.get("kind") == "eval" and row.get("split") == "held-out" and isinstance(row.get("psnr"), int | float)
    )


def others_of(trial: Path) -> list[Other]:
    """The other trials of a sweep. trial: the folder of the one that asks."""
    folders = [path for path in sorted(trial.parent.glob("trial-*")) if path.name != trial.name]
    return [other for other in map(_other, folders) if other is not None]


def _other(folder: Path) -> Other | None:
    try:
        result: Mapping[str, JSON] = read_json(record_file(folder, "train"))["result"]
        return Other(looks_of(folder / Path(result["run"]).name), finished=not result.get("pruned"))
    except (UnreadableFile, KeyError, TypeError):
        # It still runs, or it was stopped. A trial of a changed file or version leaves older runs beside the latest.
        logs = sorted(folder.glob(f"train-*/{METRICS}"), key=_changed)
        return Other(looks_of(logs[-1].parent), finished=False) if logs else None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
