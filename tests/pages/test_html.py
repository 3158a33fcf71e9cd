"""Parts of HTML pages: escaping, tables, embedded pictures, and files that are written as a whole."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

from raymine.pages import html


def test_text_is_escaped_and_surrogates_are_replaced() -> None:
    assert html.text('<b a="1">&') == "&lt;b a=&quot;1&quot;&gt;&amp;"
    assert html.text(os.fsdecode(b"r\xff")) == "r?"


def test_page_holds_its_styles_and_fetches_nothing() -> None:
    page = html.page("a < b", "<p>body</p>", css=".x {}", script="var y = 1;", generator="raymine test")
    assert "<title>a &lt; b</title>" in page
    assert ".x {}" in page
    assert "<script>var y = 1;</script>" in page
    assert 'content="raymine test"' in page
    assert "http" not in page


def test_table_names_rows_and_columns_for_screen_readers() -> None:
    table = html.table(("", "<a>"), [("row", "1"), ("other", "&")], name="t")
    assert table.count('scope="col"') == table.count('scope="row"') == 2
    assert "&lt;a&gt;" in table
    assert "<td>&amp;</td>" in table


def test_figure_without_a_caption_has_no_empty_one() -> None:
    assert "figcaption" not in html.figure("n", "title", "", "body")
    assert "<figcaption>says</figcaption>" in html.figure("n", "title", "says", "body")


def test_jpeg_is_scaled_down_and_never_up() -> None:
    picture = np.random.default_rng(0).random((30, 90, 3))
    assert Image.open(io.BytesIO(html.jpeg(picture, 45))).size == (45, 15)
    assert Image.open(io.BytesIO(html.jpeg(picture, 500))).size == (90, 30)


def test_write_page_replaces_an_earlier_one(tmp_path: Path) -> None:
    html.write_page(tmp_path / "p.html", "é", "write the page")
    html.write_page(tmp_path / "p.html", "ü", "write the page")
    assert (tmp_path / "p.html").read_text(encoding="utf-8") == "ü"
    assert os.listdir(tmp_path) == ["p.html"]
