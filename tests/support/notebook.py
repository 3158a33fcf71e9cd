"""Runs the code cells of a notebook in order in one namespace, without Jupyter.

    PYTHONPATH=tests python -m support.notebook examples/first_steps.ipynb

runs a notebook and stores its outputs in it, as Jupyter would. What a cell prints and the value of its last line are
its outputs; a value that can draw itself (`_repr_png_`) is stored as a picture.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each code cell with its outputs, in the format of the file. Runs in the current folder."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(notebook):
        yield cell, _run_cell("".join(cell["source"]), space)


def text_of(outputs: list[dict[str, Any]]) -> str:
    """What a cell printed."""
    return "".join("".join(each["text"]) for each in outputs if each["output_type"] == "stream")


def _run_cell(source: str, space: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_png_"):
            data = {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": ["a picture"]}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def main(path: Path) -> None:
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, (cell, outputs) in enumerate(run(notebook), 1):
            cell["execution_count"] = number
            cell["outputs"] = [o | ({"execution_count": number} if "execution_count" in o else {}) for o in outputs]
        os.chdir(path.parent)
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
