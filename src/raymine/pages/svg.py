"""matplotlib figures as inline SVG, with the text colour, the grid colour and the width of the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholder colours, which nothing else has. They are replaced by the colours of the page.
INK, GRID = "#010203", "#040506"

COLOURS = ("#2f86d1", "#e07b00", "#1f9d63", "#c25fc9", "#d5485f", "#1aa0a8", "#8a7a2e", "#7d72e0")
"""Distinguishable for most colour-blind readers, and readable on white and on near-black."""

DASHES = ("-", "--", "-.", ":")
WIDTH, HEIGHT = 5.4, 3.3
"""Inches. Small on purpose: a phone scales the SVG to its width, and the text with it."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "raymine",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}


def new_figure(rows: int = 1, *, height: float = HEIGHT, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with `rows` panels below each other, `height` inches each for one panel and a little less for more."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height * (1 if rows == 1 else 0.8 * rows)), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, sharex=sharex)
    return figure, [row[0] for row in axes]


def label_axes(axes: Axes, x: str, y: str, *, legend: bool = True) -> None:
    """Set the labels, and put a legend above the panel, where it hides nothing."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=2.6, columnspacing=1.2)


def to_svg(draw: Callable[[], Figure], name: str, label: str) -> str:
    """The figure of `draw` as an <svg> element in the style of the page. `name` makes its ids unique on the page."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        draw().savefig(text, format="svg", transparent=True)
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', _opening(label), body, count=1, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    return body.replace(INK, "currentColor").replace(GRID, "var(--grid)")


def _opening(label: str) -> str:
    safe = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\\", "")
    return rf'<svg viewBox="\1" role="img" aria-label="{safe}">'


def colour_of(policies: Sequence[str], policy: str) -> str:
    return COLOURS[list(policies).index(policy) % len(COLOURS)]


def dash_of(policies: Sequence[str], policy: str) -> str:
    return DASHES[list(policies).index(policy) % len(DASHES)]
