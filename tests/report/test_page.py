"""The page of a report: what it says, that it fetches nothing, and how it looks in a browser."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from raymine.errors import ConfigError
from raymine.report import page as report_page
from raymine.report import write_report
from support.browser import browser
from support.reports import CONFIG, write_run


def test_report_of_one_run_has_every_section_and_no_address(tmp_path: Path) -> None:
    report = write_report((write_run(tmp_path / "a"),))
    text = report.path.read_text()
    assert report.path == tmp_path / "a" / "report.html"
    assert report.bytes == report.path.stat().st_size
    assert (report.views, report.notes) == (3, ())
    for words in ("29.00 dB", "Test views", "Curves", "policy hard", "Resource use", "config.json", "manifest.json"):
        assert words in text
    assert "Step 3: went &lt;back&gt; &amp; on" in text
    assert "A &lt;fast&gt; CPU" in text
    # Nothing is fetched: the only addresses are the names of XML namespaces.
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert all(re.search(r'alt="[^"]{8,}"', tag) for tag in re.findall(r"<img [^>]*>", text))
    assert len(set(ids := re.findall(r'\bid="([^"]+)"', text))) == len(ids)


def test_comparison_puts_differing_settings_first(tmp_path: Path) -> None:
    other = {**CONFIG, "seed": 7}
    runs = (write_run(tmp_path / "a"), write_run(tmp_path / "b", config=other, views=0))
    text = write_report(runs, tmp_path / "out.html", render=False).path.read_text()
    assert text.index("Settings that differ") < text.index('id="results"') < text.index("Test views")
    assert f"raymine eval {runs[1]}" in text


def test_earlier_report_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_report((run,), tmp_path / "x.html")
    write_report((run,), tmp_path / "x.html")
    (tmp_path / "y.html").write_text("mine")
    with pytest.raises(ConfigError, match="is not a report of raymine"):
        write_report((run,), tmp_path / "y.html")
    assert (tmp_path / "y.html").read_text() == "mine"
    with pytest.raises(ConfigError, match="at least one run"):
        write_report(())


def test_without_matplotlib_the_report_has_all_but_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *rest: Any) -> Any:
        return None if name == "matplotlib" else real(name, *rest)

    real = importlib.util.find_spec
    monkeypatch.setattr(report_page.importlib.util, "find_spec", find)
    report = write_report((write_run(tmp_path / "a"),))
    assert "pip install 'raymine[report]'" in report.notes[0]
    assert "<svg" not in report.path.read_text()
    assert "Curves need matplotlib" in report.path.read_text()


def test_report_in_a_browser(tmp_path: Path) -> None:
    """The slider wipes, dark mode is dark, nothing is fetched, and a phone does not have to scroll sideways."""
    report = write_report((write_run(tmp_path / "a"), write_run(tmp_path / "b")), tmp_path / "r.html")
    with browser() as chromium:
        chromium.open(report.path.as_uri(), width=1000)
        assert chromium.picture().mean() > 200
        assert chromium.fetched() == []
        assert chromium.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        chromium.evaluate("document.querySelector('.wipe').scrollIntoView({block: 'center'})")
        before = chromium.picture()
        chromium.evaluate(
            "(() => { const s = document.querySelector('input[data-wipe]'); s.value = 90;"
            " s.dispatchEvent(new Event('input')); })()"
        )
        chromium.until("document.querySelector('.wipe').style.getPropertyValue('--at') === '90%'")
        assert (before != chromium.picture()).any()
        chromium.open(report.path.as_uri(), width=390, dark=True)
        assert chromium.picture().mean() < 80
        assert chromium.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
