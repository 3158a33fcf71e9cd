"""The documentation: the site builds without a warning, opens without a network, and says what the program says."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import raymine
from support.browser import Browser, browser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (
    "index.html",
    "start.html",
    "tutorials/own_field.html",
    "mining.html",
    "toolkit/README.html",
    "api/raymine.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    for package in ("sphinx", "furo", "myst_parser"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the extra `docs`: {package} is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(out / ".doctrees")]
    env = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(DOCS), str(out)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


class Links(HTMLParser):
    """What a page refers to: `linked` by a link, `loaded` when it opens; and the names that links may point to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.linked: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := known.get(key))}
        if tag == "a" and known.get("href"):
            self.linked.append(known["href"] or "")
        if tag == "link" and known.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(known.get("href") or "")
        if known.get("src"):
            self.loaded.append(known["src"] or "")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in site.rglob("*.html")}


def test_links_inside_the_site_resolve(site: Path, pages: dict[Path, Links]) -> None:
    assert len(pages) > 60
    broken = []
    for page, links in pages.items():
        for link in {*links.linked, *links.loaded}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file():
                broken.append(f"{page.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                broken.append(f"{page.relative_to(site)}: {link} (no such anchor)")
    assert not broken


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Links]) -> None:
    for page, links in pages.items():
        assert not [link for link in links.loaded if urlsplit(link).netloc], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text()), sheet


REFERENCE = (
    "contracts",
    "mining",
    "samplers",
    "fields",
    "render",
    "losses",
    "recipes",
    "evaluate",
    "export",
    "lightning",
)


def exported(module: ModuleType) -> Iterator[str]:
    """Public functions and classes of raymine that a module has under a name of its own."""
    inside = f"{module.__name__}."
    for name, value in vars(module).items():
        own = (inspect.isfunction(value) or inspect.isclass(value)) and f"{value.__module__}.".startswith(inside)
        if own and not name.startswith("_") and inspect.getdoc(value):
            yield f"{module.__name__}.{name}"


def test_every_public_name_is_in_the_reference(pages: dict[Path, Links]) -> None:
    from raymine import toolkit

    names = {f"raymine.{name}" for name in ("train", "load", "ingest", "look_at", "Run")}
    modules = [importlib.import_module(f"raymine.{name}") for name in REFERENCE if name != "lightning"]
    if importlib.util.find_spec("pytorch_lightning"):
        names |= {"raymine.lightning.RaymineData", "raymine.lightning.RaymineModule"}
    modules += [value for value in vars(toolkit).values() if inspect.ismodule(value)]
    names |= {name for module in modules for name in exported(module)}
    found = {name for links in pages.values() for name in links.names}
    missing = sorted(names - found)
    assert not missing


def errors_of(page: Browser) -> list[str]:
    """Exceptions and errors that a page has reported since it was opened."""
    kinds = {"Runtime.exceptionThrown", "Network.loadingFailed"}
    return [str(message["params"]) for message in page.messages if message.get("method") in kinds]


@pytest.mark.parametrize(("width", "dark"), [(1300, False), (1300, True), (400, False), (400, True)])
def test_pages_open_in_a_browser(site: Path, width: int, dark: bool) -> None:
    with browser() as page:
        for name in PAGES:
            page.open((site / name).as_uri(), width=width, height=900, dark=dark)
            heading = page.evaluate("document.querySelector('h1').innerText")
            assert heading.strip("¶#")
            assert heading.strip("¶#") in page.evaluate("document.title")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than the screen"
            assert not errors_of(page), name
            assert all(url.startswith("file://") for url in page.fetched()), name
            broken = "[...document.images].filter(each => !(each.complete && each.naturalWidth)).map(each => each.src)"
            assert page.evaluate(broken) == []
            shown = page.picture().astype(float)
            assert shown.std() > 5, f"{name} is blank"
            assert (np.median(shown) < 100) == dark


def test_search_works_without_a_server(site: Path) -> None:
    with browser() as page:
        page.open((site / "search.html").as_uri() + "?q=occupancy")
        page.until("document.querySelectorAll('#search-results li a').length > 3")
        found = page.evaluate("[...document.querySelectorAll('#search-results li a')].map(each => each.href)")
        assert any("occupancy" in each for each in found)
        assert all(url.startswith("file://") for url in page.fetched())


def test_an_api_page_names_arguments_and_hides_no_character(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "api" / "raymine.html").read_text())
    assert "steps, seconds: the limit; give at most one." in text
    assert "&lt;scene&gt;-&lt;recipe&gt;-&lt;n&gt;" in text


def converter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "site" / "docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_become_paragraphs_lists_and_examples() -> None:
    text = [
        "Add |a| to `b_`.",
        "",
        "    x = 1",
        "",
        "a, b [n]: numbers,",
        "    of any *sign*. c: is not one",
        "Else: no.",
    ]
    found = converter().to_rst(text, {"a", "b"})
    kept = [line for line in found if line.strip()]
    assert kept == [
        r"Add \|a\| to ``b_``.",
        "::",
        "    x = 1",
        r"* **a, b** [n]: numbers, of any \*sign\*. c: is not one Else: no.",
    ]


def sentences() -> str:
    """All text of the sources, with strings that are joined in the source joined here too."""
    text = "\n".join(path.read_text() for path in Path(raymine.__file__).parent.rglob("*.py"))
    return re.sub(r"\"\s*\n?\s*f?\"", "", text)


def test_messages_of_the_troubleshooting_page_are_those_of_the_program() -> None:
    """Of each quoted message, the longest piece between values must be in the source."""
    page, source = (DOCS / "troubleshooting.md").read_text(), sentences()
    quoted = [
        q for q in re.findall(r"`([^`]+)`", page) if " " in q and not re.match(r"raymine |--|run\.|render |lr ", q)
    ]
    messages = [q for q in quoted if "(" not in q]
    assert len(messages) > 15
    for message in messages:
        pieces = re.split(
            r"[\d.,]+ ?(?:GiB|MiB|MB|%)?|\.\.\.|\bN\b|\bM\b|--\w+|cuda:0|\bngp\b|\bplain\b|images? ", message
        )
        longest = max(pieces, key=len).strip()
        assert longest in source, message


def test_flags_in_the_pages_exist() -> None:
    from raymine.cli.app import COMMANDS
    from raymine.cli.flags import flags_of

    known = {flag for command in COMMANDS.values() for flag in flags_of(command)} | {"--help", "--version"}
    others = {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"}
    for page in (*DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.md"), ROOT / "README.md"):
        if page.name in ("LOG.md", "ARCHITECTURE.md"):
            continue
        for line in re.findall(r"(?:^|`)(raymine \w+ [^`\n#]+)", page.read_text(), re.MULTILINE):
            flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", line))
            assert flags <= known | others, f"{page.name}: {line}"
