"""The frame and the parts of a self-contained HTML page, for screens of any size, light or dark, and for paper.

A page fetches nothing: styles, figures and pictures are inside. Arguments named `body` are HTML; all others are text,
which is escaped here.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from raymine.files import atomic_file
from raymine.pictures import to_uint8

CSS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5b6570; --grid: #d8dde3; --card: #f5f7f9;
  --mark: #2f86d1; --warn: #b4540a; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #101316; --ink: #dde3e9; --soft: #98a3ae; --grid: #353c44; --card: #181c21; --warn: #f0a35e; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
p, li, figcaption { max-width: 75ch; } .soft, figcaption { color: var(--soft); font-size: .92rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .45rem; border-bottom: 1px solid var(--grid); text-align: right; white-space: nowrap; }
th { font-size: .85rem; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
th:first-child { position: sticky; left: 0; background: var(--paper); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px;
  align-items: start; }
figure { margin: 0; padding: 12px; background: var(--card); border-radius: 8px; min-width: 0; }
figure h3 { margin: 0 0 .3rem; font-size: 1rem; } figure.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif !important; }
.strip { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px; margin-bottom: .5rem; }
.strip p { font-size: .88rem; margin: 0 0 .4rem; } .strip img { display: block; width: 100%; border-radius: 4px; }
code, pre { overflow-wrap: anywhere; font-size: .9em; } pre { white-space: pre-wrap; margin: .5rem 0; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
@media (max-width: 480px) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } }
@media print { main { max-width: none; padding: 0; } figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def text(value: object) -> str:
    """`value` as text of a page."""
    # A lone surrogate, of a file name that is not UTF-8, cannot be written.
    return html.escape(str(value).encode("utf-8", "replace").decode(), quote=True)


def page(title: str, body: str, *, css: str = "", script: str = "", generator: str = "raymine") -> str:
    """A whole page. css, script: additions, which become a part of the page."""
    code = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="{text(generator)}">\n<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{CSS}{css}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n{code}"
        "</body>\n</html>\n"
    )


def write_page(path: Path, content: str, what: str) -> None:
    """Write a page as a whole or not at all. what: the action, for error messages."""
    with atomic_file(path, what) as file:
        file.write(content.encode())


def figure(name: str, title: str, says: str, body: str, *, wide: bool = False) -> str:
    """A card with a heading, a figure and a caption. name: its id on the page."""
    kind = ' class="wide"' if wide else ""
    caption = f"<figcaption>{text(says)}</figcaption>\n" if says else ""
    return f'<figure id="{text(name)}"{kind}>\n<h3>{text(title)}</h3>\n{body}\n{caption}</figure>'


def details(summary: str, body: str) -> str:
    """A part that is closed until the reader opens it."""
    return f'<details class="soft"><summary>{text(summary)}</summary>\n{body}\n</details>'


def definitions(rows: Mapping[str, object] | Iterable[tuple[str, object]]) -> str:
    """A list of names with their values."""
    pairs = rows.items() if isinstance(rows, Mapping) else rows
    items = "".join(f"<dt>{text(name)}</dt><dd><code>{text(value)}</code></dd>" for name, value in pairs)
    return f"<dl>{items}</dl>"


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, name: str = "") -> str:
    """A table whose first column names its rows. It scrolls on a narrow screen. name: its id."""
    cells = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    lines = "\n".join(
        f'<tr><th scope="row">{text(first)}</th>' + "".join(f"<td>{text(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    mark = f' id="{text(name)}"' if name else ""
    return f'<div class="scroll"><table{mark}><thead><tr>{cells}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'


def image(data: bytes, kind: str, alt: str) -> str:
    """An <img> with the bytes of a picture inside. kind: png or jpeg."""
    return f'<img alt="{text(alt)}" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'


def jpeg(picture: np.ndarray, widest: int, quality: int = 88) -> bytes:
    """A picture [H, W, 3] as JPEG, scaled so that no side exceeds `widest` pixels."""
    made = Image.fromarray(np.ascontiguousarray(to_uint8(picture)))
    made.thumbnail((widest, widest), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    made.save(out, format="JPEG", quality=quality, subsampling=0)
    return out.getvalue()
