"""Runs the examples of a documentation page."""

from __future__ import annotations

import re

from support.paths import DOCS


def run_page(name: str) -> str:
    """Run the Python blocks of a page as one program; returns the text of the page."""
    text = (DOCS / "toolkit" / name).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks, f"{name} has no example"
    exec(compile("\n".join(blocks), name, "exec"), {})
    return text
