"""The site that `make docs` builds from the pages of this folder, with Sphinx."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "site"))

import docstrings  # noqa: E402

import raymine  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "raymine"
author = "the authors of raymine"
release = version = raymine.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["site"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
default_role = "literal"

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "ignore-module-all": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
_OPTIONAL = ("pytorch_lightning", "matplotlib", "viser", "pycolmap", "trimesh", "av", "onnx", "onnxruntime", "triton")
autodoc_mock_imports = [name for name in _OPTIONAL if importlib.util.find_spec(name) is None]

html_theme = "furo"
html_title = "raymine"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # it is fetched, which a page opened from a file may not do
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, sans-serif", "color-brand-primary": "#2a6fbb"},
    "dark_css_variables": {"color-brand-primary": "#7fb2ea", "color-brand-content": "#7fb2ea"},
}

FOLDERS = ("recipes", "toolkit", "kernels")
"""Folders whose README.md is the page above all others there. Its list of them is added here, not in the file."""


def list_pages_of_folder(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the pages of a folder below its README in the navigation."""
    folder, _, name = page.partition("/")
    if folder in FOLDERS and name == "README":
        pages = sorted(path.stem for path in (HERE / folder).glob("*.md") if path.stem != "README")
        source[0] += "\n".join(["\n\n```{toctree}", ":hidden:", "", *pages, "```\n"])


def convert_docstring(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    lines[:] = docstrings.to_rst(lines, docstrings.described_names(thing))


def skip_undocumented(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: Any) -> bool | None:
    """Leave out what Python itself wrote about the fields of a named tuple; None leaves the decision to autodoc."""
    return True if str(getattr(thing, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skip_undocumented)
    app.connect("source-read", list_pages_of_folder)
    app.connect("autodoc-process-docstring", convert_docstring)
