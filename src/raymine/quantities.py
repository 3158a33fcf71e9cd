"""Quantities as text (durations, sizes, names of which there may be many), and some of many."""

from __future__ import annotations

import math
from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Seconds as text: 7.3 s, 4 min 10 s, 2 h 05 min; a dash for NaN and infinity."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def listing(names: Sequence[str], most: int = 5) -> str:
    """At most `most` names in a sentence: "a, b, c and 14 more"."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def size(count: float) -> str:
    """Bytes as text, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def spread(count: int, most: int) -> range | list[int]:
    """At most `most` indices below `count`, evenly spread; all of them if there are no more."""
    return range(count) if count <= most else [(2 * i + 1) * count // (2 * most) for i in range(most)]
