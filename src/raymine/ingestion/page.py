"""ingest.html: what got a pose and what did not, why, and what helps. One file that opens without network."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from raymine.files import UnreadableFile

from .photos import thumbnail
from .source import Skipped
from .verdict import Verdict

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c0392b; --soft: #8881; }
@media (prefers-color-scheme: dark) { :root { --good: #4cc36d; --bad: #ff7b6b; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.big { font-size: 1.25rem; } .good { color: var(--good); } .bad { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; } dt { opacity: .7; } dd { margin: 0; }
.photos { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .8rem; padding: 0; }
figure { margin: 0; border: 1px solid var(--line); border-radius: .4rem; overflow: hidden; background: var(--soft); }
figure img { width: 100%; height: 8.5rem; object-fit: contain; display: block; background: #0003; }
figure.missing { border: 2px solid var(--bad); }
figcaption { padding: .4rem .6rem; font-size: .82rem; overflow-wrap: anywhere; }
figcaption p { margin: .25rem 0 0; } .name { font-weight: 600; } .facts { opacity: .75; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


def page(
    title: str,
    verdicts: Sequence[Verdict],
    skipped: Sequence[Skipped],
    facts: Mapping[str, str],
    advice: Sequence[str],
    images: Path,
) -> str:
    """The page. facts: rows of the summary. images: the folder of the pictures, for thumbnails."""
    registered = [verdict for verdict in verdicts if verdict.registered]
    missing = [verdict for verdict in verdicts if not verdict.registered]
    flawed = [verdict for verdict in registered if verdict.why]
    tone = "good" if len(registered) == len(verdicts) else "bad" if len(missing) > len(registered) else ""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    items = "".join(f"<li>{escape(line)}</li>" for line in advice)
    parts = [
        f'<p class="big {tone}">{len(registered)} of {len(verdicts)} photos have a pose.</p>',
        f"<dl>{rows}</dl><h2>What to do</h2><ul>{items}</ul>",
        _section("Photos without a pose", missing, images),
        _section("Photos with a pose and a fault", flawed, images),
        _section("Photos with a pose", [each for each in registered if not each.why], images),
        _skipped(skipped),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def _section(title: str, verdicts: Sequence[Verdict], images: Path) -> str:
    if not verdicts:
        return ""
    figures = "".join(_figure(verdict, images) for verdict in verdicts)
    return f'<h2>{escape(title)} ({len(verdicts)})</h2><div class="photos">{figures}</div>'


def _figure(verdict: Verdict, images: Path) -> str:
    photo = verdict.photo
    where = photo.source if photo.source == photo.name else f"{photo.name} ({photo.source})"
    facts = f"{verdict.features} features, {verdict.neighbours} neighbours, sharpness {photo.sharpness:.0f}"
    if verdict.registered:
        facts = f"{verdict.points} points, {facts}"
    words = "".join(f"<p>{escape(why)}</p>" for why in (*verdict.why, *verdict.hints))
    return (
        f"<figure{'' if verdict.registered else ' class=missing'}>{_picture(images / photo.name, photo.name)}"
        f'<figcaption><span class="name">{escape(where)}</span><p class="facts">{facts}</p>{words}'
        "</figcaption></figure>"
    )


def _picture(path: Path, name: str) -> str:
    try:
        small = thumbnail(path)
    except UnreadableFile:
        return ""
    data = io.BytesIO()
    small.save(data, "JPEG", quality=78)
    text = base64.b64encode(data.getvalue()).decode()
    return f'<img loading="lazy" alt="photo {escape(name, quote=True)}" src="data:image/jpeg;base64,{text}">'


def _skipped(skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return ""
    items = "".join(f"<li><b>{escape(each.name)}</b> {escape(each.why)}</li>" for each in skipped)
    return f"<h2>Files that were not used ({len(skipped)})</h2><ul>{items}</ul>"
