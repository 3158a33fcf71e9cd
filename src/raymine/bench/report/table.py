"""The result table of a mining benchmark as text. The terminal and the page show the same cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raymine.bench.records import Document, Speedup, Stat, Summary

DASH = "–"


class Table(NamedTuple):
    """columns: n pairs (title, meaning). rows: n cells each, of which the first is the policy."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def table_of(document: Document) -> Table:
    """One row per policy. `notes` explain the speed-ups in sentences."""
    budget = document.setting.seconds
    columns = (
        ("policy", "which samples are trained on"),
        (f"dB at {budget / 4:g} s", "held-out PSNR on a grid of pixels after a quarter of the time"),
        (f"dB at {budget / 2:g} s", "after half of the time"),
        (f"dB at {budget:g} s", "at the end"),
        ("dB, all pixels", "at the end, on every pixel of every held-out view"),
        ("ms/step", "median time of a training step"),
        ("rays/step", "at the end of training"),
        ("b/B", "trained / marched samples, over the last tenth of the steps"),
        ("MiB/step", "peak memory that one step allocates"),
        ("saved", "share of the memory that none needs for the same batch"),
        ("x none", "how much sooner it reaches the final PSNR of none"),
        ("x prune", "how much sooner it reaches the final PSNR of prune"),
        ("loss/none", "loss / loss of none at equal iteration, mean over the second half"),
    )
    rows = tuple(_row(summary) for summary in document.summaries)
    speedups = [s for row in document.summaries for s in (row.speedup_vs_none, row.speedup_vs_prune) if s is not None]
    notes = tuple(dict.fromkeys(s.note for s in speedups if "baseline" not in s.note))
    return Table(columns, rows, notes)


def _row(summary: Summary) -> tuple[str, ...]:
    ratio = summary.loss_ratio_vs_none
    return (
        summary.policy,
        *(_cell(each, _decimals(2)) for each in (summary.psnr_quarter, summary.psnr_half, summary.psnr_end)),
        _cell(summary.psnr_full, _decimals(2)),
        _cell(summary.step_ms, _decimals(2)),
        _cell(summary.rays, _decimals(0)),
        _cell(summary.share, _decimals(3)),
        _cell(summary.memory, lambda v: f"{v / 2**20:.2f}"),
        _cell(summary.memory_saved, lambda v: f"{round(100 * v)} %"),
        _factor(summary.speedup_vs_none),
        _factor(summary.speedup_vs_prune),
        DASH if ratio is None else f"{ratio:.2f}",
    )


def _decimals(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{count}f}"


def _cell(stat: Stat | None, text: Callable[[float], str]) -> str:
    """A mean, followed by the range over seeds if it is not a single value."""
    if stat is None:
        return DASH
    spread = f" ({text(stat.low)}{DASH}{text(stat.high)})" if text(stat.low) != text(stat.high) else ""
    return text(stat.mean) + spread


def _factor(found: Speedup | None) -> str:
    if found is None:
        return DASH
    if found.factor is None:
        return "never"
    known = [f for f in found.seeds if f is not None]
    spread = f" ({min(known):.2f}{DASH}{max(known):.2f})" if len(known) > 1 and min(known) != max(known) else ""
    return f"{found.factor:.2f}{spread}"
