"""`mining.html`: a self-contained page of results, for screens of any size, light or dark."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raymine.bench.records import BenchRun, Document
from raymine.bench.snapshots import FOLDER
from raymine.pages import html
from raymine.pages.html import text as _text
from raymine.pages.svg import to_svg

from . import plots
from .table import table_of

PAGE = "mining.html"

_SENTENCES = {
    "psnr": (
        "Quality over time",
        "Higher and further left is better: a policy wins by as much as its curve is left of another's at equal "
        "height. Only training counts as time.",
    ),
    "skewness": (
        "How uneven the gradients are",
        "Skewness of the gradient norm G over the marched samples of one batch at each evaluation. The larger it is, "
        "the fewer samples have a large gradient, and the more samples can be left out.",
    ),
    "loss": (
        "Loss per iteration",
        "Above, the training loss. Below, its ratio to the loss of none at equal iteration: below 1, an iteration "
        "learns more. Faster steps reach further right in the same time, so their learning rate decays later.",
    ),
    "share": (
        "How many samples are trained on",
        "Above, the share of marched samples that each step trains on. Below, tau: the larger it is, the more the "
        "gradients are concentrated on few samples; mining trains on about B / tau of them.",
    ),
    "picked": (
        "Which samples are picked",
        "Above, the classes of the trained samples of one batch; below, the share of each class that is chosen. Mining "
        "should choose surface samples, and leave out empty space and occluded samples.",
    ),
}


class PageFigure(NamedTuple):
    """One figure: `name` is its id on the page, `says` its caption, `body` its SVG or pictures."""

    name: str
    title: str
    says: str
    body: str
    wide: bool = False


def write_page(folder: Path, document: Document) -> Path:
    """Write `mining.html` to the folder of the results. Pictures from the folder are embedded."""
    path = folder / PAGE
    html.write_page(path, render_page(folder, document), "write the page of the benchmark")
    return path


def render_page(folder: Path, document: Document) -> str:
    """The HTML of the page."""
    scene = Path(document.setting.scene).name
    title = f"Mining benchmark: {scene}"
    runs = f"{len(document.runs)} of {len(document.setting.policies) * document.seeds} runs"
    partial = "" if document.complete else f"<p><strong>Incomplete:</strong> {runs} are done.</p>"
    figures = "\n".join(
        html.figure(each.name, each.title, each.says, each.body, wide=each.wide)
        for each in all_figures(folder, document)
    )
    return html.page(
        title,
        f"<h1>{_text(title)}</h1>\n{_lead(document)}\n{partial}\n{_table(document)}\n<h2>Figures</h2>\n"
        f'<div class="figures">\n{figures}\n</div>\n{_conditions(document)}',
        generator="raymine bench mining",
    )


def all_figures(folder: Path, document: Document) -> list[PageFigure]:
    """All figures for which the document has data, in reading order."""
    made = [_drawn(document, name, title, says) for name, (title, says) in _SENTENCES.items()]
    made.append(_drawn(document, "distributions", "Pixel losses and sample weights", _about_distributions(document)))
    seen = [run for run in document.runs if run.ray is not None]
    if seen:
        run = next((run for run in reversed(seen) if run.policy.startswith("hard")), seen[-1])
        says = (
            f"A hard ray under the policy {run.policy} at the end of training: G is large where the ray meets "
            "something, and the ringed samples are those that a step trains on."
        )
        svg = to_svg(lambda: plots.ray(run), "ray", "One ray, sample by sample")
        made.append(PageFigure("ray", "One ray, sample by sample", says, svg))
    says = (
        "Bars: the most that one step holds at once beyond parameters and images. Dotted: what none needs for the same "
        "rays and samples."
    )
    made.append(_drawn(document, "memory", "Memory of a step", says))
    return made + _picture_figures(folder, document)


def _about_distributions(document: Document) -> str:
    """The caption of the histograms, with the share of samples that are too small to be shown."""
    parts = []
    for policy, runs in plots.groups(document):
        found = [run.looks[-1].diagnosis for run in runs if run.looks]
        below, every = sum(d.weights.below for d in found), sum(d.samples for d in found)
        # A no-break space keeps the percent sign on the same line.
        parts.append(f"{policy} {100 * below / max(1, every):.0f}\u00a0%")
    edge = document.runs[0].looks[-1].diagnosis.weights.edges[0] if document.runs else 0.0
    return (
        "One batch at the end, on logarithmic axes: some pixels and some samples are orders of magnitude above the "
        f"rest, and so are their gradients. Not drawn are samples that weigh less than {edge:.0e}: {', '.join(parts)}."
    )


def _drawn(document: Document, name: str, title: str, says: str) -> PageFigure:
    return PageFigure(name, title, says, to_svg(lambda: getattr(plots, name)(document), name, title))


def _picture_figures(folder: Path, document: Document) -> list[PageFigure]:
    shown = [run for run in document.runs if run.pictures and (folder / FOLDER / run.pictures["truth"]).is_file()]
    if not shown:
        return []
    hard = "".join(f"<div>{_picture(folder, run, 'hard', run.policy)}</div>" for run in shown)
    truth = f"<div>{_picture(folder, shown[0], 'truth', 'truth')}</div>"
    pairs = ""
    for run in shown:
        error = _picture(folder, run, "error", f"{run.policy}: error")
        pairs += f"<div>{_picture(folder, run, 'predicted', run.policy)}{error}</div>"
    return [
        PageFigure(
            "hard",
            "Hard rays over a held-out view",
            "Light yellow marks the rays with the largest gradients, over a dim grey picture: edges and fine texture "
            "stay hard after everything else is learnt.",
            f'<div class="strip">{hard}</div>',
            wide=True,
        ),
        PageFigure(
            "views",
            "What each policy shows after the same time",
            "A view that no policy was trained on, at the end of seed 0. Errors: dark is equal to the truth, light "
            "yellow is a quarter of full scale or more away from it.",
            f'<div class="strip">{truth}{pairs}</div>',
            wide=True,
        ),
    ]


def _picture(folder: Path, run: BenchRun, kind: str, label: str) -> str:
    path = folder / FOLDER / run.pictures[kind]
    return f"<p>{html.image(path.read_bytes(), 'png', label)}{_text(label)}</p>"


def _lead(document: Document) -> str:
    setting, shapes = document.setting, document.shapes
    seeds = "one seed" if document.seeds == 1 else f"{document.seeds} seeds"
    return (
        f"<p>Every policy trained the same model for {setting.seconds:g} s of training time with {seeds}, on "
        f"{shapes.train_images} images of {shapes.width} x {shapes.height} pixels; PSNR is the mean over "
        f"{shapes.held_out_views} views that were held out. Device: {_text(document.environment.device)}.</p>"
    )


def _table(document: Document) -> str:
    table = table_of(document)
    # One row per figure: with the range over seeds in each cell, one column per figure would be too wide.
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in (table.columns[0][0], *(r[0] for r in table.rows)))
    lines = zip(table.columns[1:], *(row[1:] for row in table.rows), strict=True)
    rows = "\n".join(
        f'<tr><th scope="row" title="{_text(says)}">{_text(name)}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        + "</tr>"
        for (name, says), *cells in lines
    )
    meanings = "; ".join(f"<b>{_text(name)}</b> {_text(says)}" for name, says in table.columns[1:])
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    spread = "Means over seeds, their range in brackets. " if document.seeds > 1 else ""
    return (
        f'<div class="scroll"><table id="results"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n"
        f'<ul>{notes}</ul>\n<details class="soft"><summary>What the rows mean</summary>'
        f"<p>{spread}{meanings}.</p></details>"
    )


def _conditions(document: Document) -> str:
    environment = document.environment
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    rows = (
        ("command", " ".join(document.command) or "not known"),
        ("started", document.started),
        ("device", f"{environment.device}; {environment.threads} threads"),
        ("processor", _load(document)),
        ("raymine", f"{environment.raymine}, commit {environment.commit or 'not known'}"),
        ("software", f"Python {environment.python}, {packages}; {environment.platform}"),
        (
            "model",
            f"{document.shapes.parameters} parameters, {document.shapes.samples_per_step} samples marched a step",
        ),
        ("numbers", "all of them, and every config, are in mining.json beside this page"),
    )
    return f"<h2>Conditions</h2>\n{html.definitions(rows)}"


def _load(document: Document) -> str:
    shares = [run.cpu_share for run in document.runs]
    if not shares:
        return "no run yet"
    return (
        f"{min(shares):.2f} to {max(shares):.2f} s of processor time per second of training; much variation between "
        "runs means that other programs were at work, and that times are worth little"
    )
