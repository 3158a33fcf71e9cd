"""`results.json` and `results.html`: what became of every point of a sweep, and which setting is best."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from raymine.files import JSON, write_json
from raymine.pages import html
from raymine.pages.html import text
from raymine.pages.svg import to_svg
from raymine.quantities import duration

from ..prune import Prune
from ..sweep import Row
from ..sweep_spec import Range, Sweep
from . import plots, words

RESULTS, PAGE = "results.json", "results.html"
_MOST_SETTINGS = 24
_CSS = """
.best-first tbody tr:first-child { font-weight: 600; }
.best { border-left: 4px solid var(--mark); padding: .1rem .8rem; }
"""


def write_results(sweep: Sweep, rows: Sequence[Row], ok: bool) -> JSON:
    """Write both files into the folder of the sweep. rows: best first. ok: nothing failed. Returns the document."""
    document: JSON = {
        "file": str(sweep.file),
        "out": str(sweep.out),
        "ok": ok,
        "metric": sweep.metric,
        "rows": [asdict(row) for row in rows],
    }
    write_json(sweep.out / RESULTS, document, "write the results")
    html.write_page(sweep.out / PAGE, render_page(sweep, rows), "write the page of the sweep")
    return document


def render_page(sweep: Sweep, rows: Sequence[Row]) -> str:
    """The HTML of the page. rows: best first."""
    title = f"Sweep {sweep.file.stem}: {Path(sweep.scene).name}"
    parts = [f"<h1>{text(title)}</h1>", f"<p>{text(_about(sweep, rows))}</p>", _best(rows)]
    parts += ["<h2>Trials</h2>", _table(sweep, rows), "<h2>Scores</h2>", _figures(sweep, rows)]
    parts += ["<h2>What was asked for</h2>", _asked(sweep)]
    return html.page(title, "\n".join(parts), css=_CSS, generator="raymine sweep")


def _about(sweep: Sweep, rows: Sequence[Row]) -> str:
    seeds = f", the mean over {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    model = "the final model" if sweep.metric == "held_out_psnr" else "the best checkpoint"
    return (
        f"{words.counts(rows)} The score is the PSNR of {model}{seeds}, in dB, on {sweep.train['hold_out']} views that "
        "were held out from training. Test views chose nothing."
    )


def _best(rows: Sequence[Row]) -> str:
    body = "".join(f"<p>{text(sentence)}</p>" for sentence in words.verdict(rows))
    if rows and rows[0].score is not None:
        command = text(words.evaluation(rows[0]))
        body += f"<p>To score its test views:</p><pre><code>{command}</code></pre>"
    return f'<div class="best">{body}</div>'


def _table(sweep: Sweep, rows: Sequence[Row]) -> str:
    names = list(sweep.space)
    several = len(sweep.seeds) > 1
    head = [
        "trials" if several else "trial",
        "score (dB)",
        *(["spread"] if several else []),
        *names,
        "trained",
        "status",
    ]
    lines = []
    for row in rows:
        first, last = row.trials[0].name, row.trials[-1].name
        seconds = words.trained_seconds(row)
        lines.append(
            [
                first if first == last else f"{first} to {last.rpartition('-')[2]}",
                _decibels(row.score),
                *([_decibels(row.spread)] if several else []),
                *(words.value(row.settings[name]) for name in names),
                "-" if seconds is None else duration(seconds),
                words.state(row) or "finished",
            ]
        )
    table = html.table(head, lines, name="trials")
    # The first row is the best one, if any has a score.
    return table.replace("<table", '<table class="best-first"', 1) if rows and rows[0].score is not None else table


def _decibels(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def _figures(sweep: Sweep, rows: Sequence[Row]) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return "<p>There are no figures: they need matplotlib (pip install 'raymine[report]').</p>"
    if not any(row.score is not None or words.stops(row) for row in rows):
        return "<p>There are no scores yet.</p>"
    title = "Score by trial"
    says = (
        "In the order in which trials were started. Pruned trials are shown with the PSNR at which they were stopped."
    )
    large = [html.figure("by-trial", title, says, to_svg(lambda: plots.by_trial(rows), "by-trial", title))]
    curves = plots.curves_of(rows)
    if curves:
        title, says = "Quality against steps", "Quick evaluations of held-out views; the best points have a colour."
        large.append(html.figure("by-look", title, says, to_svg(lambda: plots.by_look(curves), "by-look", title)))
    small = []
    for place, name in enumerate(words.varied(sweep, rows)[:_MOST_SETTINGS]):
        mark = f"setting-{place}"
        drawing = to_svg(partial(plots.by_setting, sweep, rows, name), mark, f"Score against {name}")
        small.append(html.figure(mark, name, "", drawing))
    return f'<div class="figures">{"".join(large)}</div><h2>Settings</h2><div class="figures">{"".join(small)}</div>'


def _asked(sweep: Sweep) -> str:
    space = {f"space: {name}": _values(allowed) for name, allowed in sweep.space.items()}
    rows: dict[str, object] = {"file": sweep.file, "scene": sweep.scene, "search": sweep.search, **space}
    rows |= {f"train: {name}": value for name, value in sweep.train.items()}
    rows |= {
        "seeds": ", ".join(map(str, sweep.seeds)),
        "pruning": _pruning(sweep.prune),
        "numbers": f"{RESULTS}, beside this page",
    }
    return html.definitions(rows)


def _values(allowed: list[JSON] | Range) -> str:
    if isinstance(allowed, Range):
        return f"{allowed.low:g} to {allowed.high:g}{', uniform in the logarithm' if allowed.log else ''}"
    return ", ".join(words.value(each) for each in allowed)


def _pruning(prune: Prune | None) -> str:
    return "none" if prune is None else f"{prune.rule}, from look {prune.from_look} on"
