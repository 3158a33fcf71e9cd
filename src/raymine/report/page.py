"""The page of a report, put together from records, curves and views."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from raymine.config import to_json
from raymine.errors import ConfigError, option
from raymine.experiment import load_run
from raymine.files import UnreadableFile, obstacle, read_file
from raymine.pages import html
from raymine.pages.html import text
from raymine.pages.svg import to_svg
from raymine.quantities import duration, size

from . import compare, words
from .curves import Curve, curves_of, mining_curves
from .hard import HardPictures, hard_pictures_of
from .record import RunRecord, read_runs
from .views import ShownView, ShownViews, views_of

GENERATOR = "raymine report"
NAME = "report.html"

_CSS = """
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; margin: 1rem 0; }
.facts div { background: var(--card); border-radius: 8px; padding: .6rem .8rem; }
.facts b { display: block; font-size: 1.3rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.warning { border-left: 4px solid var(--warn); padding: .1rem .8rem; }
.views { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 16px; }
.hard { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 280px), 1fr)); gap: 16px; }
.hard img { display: block; width: 100%; border-radius: 4px; } h3 { font-size: 1.05rem; margin: 1.4rem 0 .5rem; }
h4 { margin: 1rem 0 .4rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 8px; align-items: start; }
.pair img { display: block; width: 100%; border-radius: 4px; } .pair p { margin: .2rem 0 0; font-size: .85rem; }
.wipe { position: relative; --at: 50%; }
.wipe .over { position: absolute; inset: 0; clip-path: inset(0 0 0 var(--at)); }
.wipe .line { position: absolute; top: 0; bottom: 0; left: var(--at); width: 2px; margin-left: -1px; background: #fff;
  box-shadow: 0 0 3px #000; pointer-events: none; }
input[type=range] { width: 100%; margin: .4rem 0 0; accent-color: var(--mark); }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .25rem .8rem; align-items: center; }
.bars i { display: block; height: .8rem; border-radius: 3px; background: var(--mark); min-width: 2px;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bars span:nth-child(3n) { text-align: right; font-variant-numeric: tabular-nums; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; } a { color: var(--mark); }
td.left, table.left td { text-align: left; white-space: normal; min-width: 8rem; overflow-wrap: anywhere; }
@media (max-width: 480px) { .pair { grid-template-columns: 1fr; } }
@media print {
  .figures { grid-template-columns: 1fr 1fr; } .hard { grid-template-columns: repeat(3, 1fr); }
  .pair { grid-template-columns: 2fr 1fr; } .wipe { display: grid; grid-template-columns: 1fr 1fr; gap: 8px; }
  .wipe .over { position: static; clip-path: none; } .wipe .line, input[type=range], nav { display: none; }
}
"""

_SCRIPT = """
document.querySelectorAll('input[data-wipe]').forEach(function (slider) {
  var target = document.getElementById(slider.dataset.wipe);
  slider.addEventListener('input', function () { target.style.setProperty('--at', slider.value + '%'); });
});
"""


@dataclass(frozen=True)
class Report:
    """A written report. views: test views that it shows. notes: sentences for the user."""

    path: Path
    runs: tuple[Path, ...]
    views: int
    bytes: int
    notes: tuple[str, ...] = ()


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    render: bool = True,
    device: str = "auto",
    allow: Sequence[str] = (),
) -> Report:
    """Write the report of one or more runs.

    out: the file. If None, `report.html` in the run folder, or in the working folder for several runs. render: whether
    to open the models, on `device`, to show where their hard samples are, and to render a few test views of a run that
    was not evaluated. allow: packages from which a run's config may use classes, as in `load_run`.
    """
    if not paths:
        raise ConfigError("A report needs at least one run.")
    target = out if out is not None else (paths[0] / NAME if len(paths) == 1 else Path(NAME))
    runs = read_runs(tuple(paths))
    require_target(target)
    shown: list[ShownViews] = []
    hard: list[HardPictures] = []
    for run in runs:
        load = cache(partial(load_run, run.path, device=device, allow=allow))
        # The same views of every run, so that they can be compared.
        names = [view.name for view in shown[0].views] if shown else []
        shown.append(views_of(run, load, names=names, render=render))
        names = [picture.name for picture in hard[0].pictures] if hard else []
        hard.append(hard_pictures_of(load, names=names, render=render))
    content = render_page(runs, shown, hard)
    html.write_page(target, content, "write the report")
    notes = [each.note for each in shown if not each.views]
    if not _can_draw():
        notes.append("The report has no curves: they need matplotlib (pip install 'raymine[report]').")
    count = sum(len(each.views) for each in shown)
    return Report(target, tuple(paths), count, len(content.encode()), tuple(notes))


def require_target(path: Path) -> None:
    """Raise `ConfigError` if `path` is not a place for a report: a folder, or a file that is not an earlier report."""
    fault = obstacle(path, folder=False)
    if fault:
        raise ConfigError(f"{option('out', path)} {fault}.", hint=f"Give another {option('out')}.")
    if not path.parent.is_dir():
        raise ConfigError(f"{option('out', path)}: there is no folder {path.parent}.", hint="Make it first.")
    if path.exists():
        try:
            start = read_file(path)[:2000]
        except UnreadableFile as error:
            raise ConfigError(f"{option('out', path)} {error.what}") from error
        if f'content="{GENERATOR}"'.encode() not in start:
            raise ConfigError(
                f"{option('out', path)} exists and is not a report of raymine; it is left untouched.",
                hint=f"Give another {option('out')}.",
            )


def render_page(runs: Sequence[RunRecord], shown: Sequence[ShownViews], hard: Sequence[HardPictures]) -> str:
    """The HTML of the report. shown, hard: the test views and the training views of each run."""
    several = len(runs) > 1
    title = f"{len(runs)} runs compared" if several else f"{words.scene_name(runs[0])}: {runs[0].manifest.recipe}"
    parts = [f"<h1>{text(title)}</h1>"]
    if several:
        parts += [_paragraph(compare.lead(runs)), _comparison(runs)]
    else:
        parts += [_paragraph(*words.lead(runs[0])), _facts(runs[0]), _warnings(runs[0])]
    parts += [f'<p class="soft">{text(words.PSNR)}</p>', _navigation(runs)]
    parts += ['<h2 id="views">Test views</h2>', *map(_views, runs, shown, range(len(runs)), [several] * len(runs))]
    parts += ['<h2 id="curves">Curves</h2>', _figures(curves_of(runs), "This run has no metrics yet.")]
    parts += ['<h2 id="mining">Mining: which samples are trained on</h2>']
    parts += [(f"<h3>{text(run.label)}</h3>" if several else "") + _paragraph(*words.mining(run)) for run in runs]
    parts += [_figures(mining_curves(runs), "There is nothing to show yet.")]
    parts += ["<h3>Where the hard samples are</h3>", _paragraph(words.HARD)]
    parts += map(_hard_pictures, runs, hard, range(len(runs)), [several] * len(runs))
    for run in runs:
        name = f": {run.label}" if several else ""
        if several:
            parts += [f"<h2>{text(run.label)}</h2>", _paragraph(*words.lead(run)), _warnings(run)]
        parts += [f'<h2 id="resources">Resource use{text(name)}</h2>', _resources(run)]
        parts += [f'<h2 id="settings">Configuration and origin{text(name)}</h2>', _origin(run), _events(run)]
    return html.page(title, "\n".join(parts), css=_CSS, script=_SCRIPT, generator=GENERATOR)


def _navigation(runs: Sequence[RunRecord]) -> str:
    names = {"views": "Test views", "curves": "Curves", "mining": "Mining", "resources": "Resources"}
    names |= {"settings": "Configuration"}
    return "<nav>" + "".join(f'<a href="#{mark}">{name}</a>' for mark, name in names.items()) + "</nav>"


def _paragraph(*sentences: str) -> str:
    return "".join(f"<p>{text(sentence)}</p>" for sentence in sentences)


def _facts(run: RunRecord) -> str:
    """The numbers that most readers look for, in large type."""
    scores, manifest = run.scores, run.manifest
    facts = [
        (words.number(run.psnr) + " dB" if run.psnr is not None else "–", "PSNR on " + words.scored_on(run)),
        (words.number(scores.ssim, 4) if scores else "–", "SSIM on test views"),
        (duration(manifest.elapsed), "of training"),
        (f"{manifest.step:,}", "steps"),
        ("–" if run.mean_share is None else words.percent(run.mean_share), "of samples trained on"),
    ]
    return '<div class="facts">' + "".join(f"<div><b>{text(v)}</b>{text(k)}</div>" for v, k in facts) + "</div>"


def _warnings(run: RunRecord) -> str:
    """Warnings of the run, for which no reader should have to search."""
    found = [event for event in run.events if event.get("level") not in ("info", None)]
    if not found:
        return ""
    items = "".join(f"<p>Step {text(event.get('step'))}: {text(event.get('message'))}</p>" for event in found[:12])
    more = f"<p>And {len(found) - 12} more, below.</p>" if len(found) > 12 else ""
    return f'<div class="warning" role="note"><strong>Warnings</strong>{items}{more}</div>'


def _comparison(runs: Sequence[RunRecord]) -> str:
    labels = [run.label for run in runs]
    differing = compare.differing_settings(runs)
    settings = (
        html.table(("setting", *labels), differing, name="differing")
        if differing
        else "<p>These runs have the same settings.</p>"
    )
    return (
        f"<h2>Settings that differ</h2>{settings}\n<h2>Results</h2>"
        f"{html.table(('', *labels), compare.results(runs), name='results')}"
    )


def _views(run: RunRecord, shown: ShownViews, number: int, named: bool) -> str:
    heading = f"<h3>{text(run.label)}</h3>" if named else ""
    cards = "\n".join(_view(view, f"wipe-{number}-{i}") for i, view in enumerate(shown.views))
    every = ""
    if run.scores is not None and run.scores.views:
        rows = [(name, words.number(psnr), words.number(ssim, 4)) for name, psnr, ssim in run.scores.views]
        summary = f"Scores of all {len(rows)} test views"
        every = html.details(summary, html.table(("view", "PSNR (dB)", "SSIM"), rows))
    return f'{heading}<p class="soft">{text(shown.note)}</p>\n<div class="views">{cards}</div>\n{every}'


def _view(view: ShownView, name: str) -> str:
    """A card with the photo below the prediction and a slider between them, and the error beside it."""
    score = "" if view.psnr is None else f", PSNR {view.psnr:.2f} dB"
    true = html.image(view.true, "jpeg", f"Photo of the test view {view.name}")
    predicted = html.image(view.predicted, "jpeg", f"Prediction of the test view {view.name}{score}")
    error = html.image(view.error, "jpeg", f"Error of the test view {view.name}: dark where photo and prediction agree")
    body = (
        f'<div class="pair"><div><div class="wipe" id="{name}">{true}'
        f'{predicted.replace("<img ", "<img class=over ", 1)}<span class="line"></span></div>'
        f'<input type="range" min="0" max="100" value="50" data-wipe="{name}" '
        f'aria-label="Wipe between photo and prediction of {text(view.name)}"><p>Left: photo. Right: prediction.</p>'
        f"</div><div>{error}<p>Error: dark is equal, light yellow is a quarter of full scale or more.</p></div></div>"
    )
    why = f" ({view.why})" if view.why else ""
    return html.figure(f"card-{name}", f"{view.name}{score}{why}", "", body)


def _hard_pictures(run: RunRecord, hard: HardPictures, number: int, named: bool) -> str:
    title = f"<h4>{text(run.label)}</h4>" if named else ""
    note = f'<p class="soft">{text(hard.note)}</p>' if hard.note else ""
    cards = [
        html.figure(
            f"hard-{number}-{i}",
            each.name,
            words.hardest(each.hardest_tenth),
            html.image(each.picture, "jpeg", f"Hard samples of the training view {each.name}, light on a grey photo"),
        )
        for i, each in enumerate(hard.pictures)
    ]
    return f'{title}{note}<div class="hard">{"".join(cards)}</div>'


def _figures(curves: Sequence[Curve], otherwise: str) -> str:
    if not curves:
        return f"<p>{text(otherwise)}</p>"
    if not _can_draw():
        return "<p>Curves need matplotlib: pip install 'raymine[report]', then write this report again.</p>"
    cards = [html.figure(c.name, c.title, c.says, to_svg(c.draw, c.name, f"{c.title}. {c.says}")) for c in curves]
    return f'<div class="figures">{"".join(cards)}</div>'


def _can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _resources(run: RunRecord) -> str:
    stages = {name: seconds for name, seconds in run.stages.items() if seconds >= 0.05}
    longest = max(stages.values(), default=1.0)
    bars = "".join(
        f'<span>{text(name)}</span><span><i style="width:{100 * seconds / longest:.1f}%"></i></span>'
        f"<span>{text(duration(seconds))}</span>"
        for name, seconds in sorted(stages.items(), key=lambda pair: -pair[1])
    )
    first = [a.first_step for a in run.manifest.attempts if a.first_step is not None]
    rows = [
        ("wall clock", "not known yet" if run.wall is None else duration(run.wall)),
        ("first step after", duration(first[0]) if first else "not known"),
        ("time of a step", f"{words.number(1e3 * run.manifest.elapsed / max(1, run.manifest.step))} ms"),
        ("peak memory of the host", size(run.memory["host"]) if "host" in run.memory else "not recorded"),
        *([("peak memory of the device", size(run.memory["device"]))] if "device" in run.memory else []),
        ("size of a checkpoint", size(run.checkpoint_bytes) if run.checkpoint_bytes else "none saved"),
        ("device", words.device(run)),
    ]
    chart = f'<p class="soft">Wall clock by stage:</p><div class="bars">{bars}</div>' if bars else ""
    return chart + html.definitions(rows)


def _origin(run: RunRecord) -> str:
    manifest, environment = run.manifest, run.manifest.environment
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    rows = [
        ("run folder", run.path),
        ("scene", manifest.scene),
        ("command", " ".join(manifest.attempts[-1].command) if manifest.attempts else "not known"),
        ("seed", manifest.seed),
        ("started", manifest.started),
        ("ended", manifest.ended or "not yet"),
        ("attempts", len(manifest.attempts)),
        ("raymine", f"{environment.raymine}, commit {environment.commit or 'not known'}"),
        ("software", f"Python {environment.python}, {packages}; {environment.platform}"),
        ("digest of the scene", manifest.scene_digest),
    ]
    settings = html.table(("setting", "value"), run.setting_values.items())
    raw = f"<pre>{text(json.dumps(to_json(manifest), indent=2, ensure_ascii=False))}</pre>"
    config = f"<pre>{text(json.dumps(run.config, indent=2, ensure_ascii=False))}</pre>"
    return (
        html.definitions(rows)
        + html.details("All settings", settings.replace("<table", '<table class="left"', 1))
        + html.details("config.json", config)
        + html.details("manifest.json", raw)
    )


def _events(run: RunRecord) -> str:
    if not run.events:
        return ""
    keys = ("step", "level", "kind", "message")
    rows = [tuple(str(event.get(key, "")) for key in keys) for event in run.events]
    made = html.table(keys, rows).replace("<table", '<table class="left"', 1)
    return html.details(f"All {len(rows)} events", made)
