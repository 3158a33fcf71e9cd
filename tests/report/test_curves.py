"""Curves of a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymine.pages.svg import to_svg
from raymine.report.curves import curves_of, mining_curves, thinned
from raymine.report.record import read_runs
from support.reports import write_run


def test_long_curves_are_thinned_to_means() -> None:
    x = np.arange(10_000.0)
    few, means = thinned(x, x * 2)
    assert len(few) == 400
    assert few[0] == pytest.approx(12.0)
    np.testing.assert_allclose(means, few * 2)
    assert thinned(x[:400], x[:400])[0] is not None
    assert len(thinned(x[:400], x[:400])[0]) == 400


def test_quality_is_drawn_against_steps_and_time_with_evaluations_as_dots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = read_runs((write_run(tmp_path / "a"), write_run(tmp_path / "b", rows=20)))
    found = {curve.name: curve.draw() for curve in curves_of(runs)}
    assert list(found) == ["psnr-steps", "psnr-time", "loss-steps", "loss-time"]
    for name, last in (("psnr-steps", 320), ("psnr-time", 10.0)):
        line, dots = found[name].axes[0].lines[2:4]
        assert line.get_xdata()[-1] == last
        assert len(dots.get_xdata()) == 2
        assert dots.get_marker() == "o"
    assert {t.get_text() for t in found["psnr-steps"].axes[0].get_legend().get_texts()} == {"a", "b"}


def test_mining_is_drawn_as_share_and_tau(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curve = mining_curves(read_runs((write_run(tmp_path / "a", rows=10),)))[0]
    upper, lower = curve.draw().axes
    assert upper.lines[0].get_ydata()[0] == pytest.approx(0.5)
    assert lower.lines[0].get_ydata()[-1] == 10.0


def test_run_without_metrics_has_no_curves(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").write_text("")
    runs = read_runs((path,))
    assert curves_of(runs) == mining_curves(runs) == []


def test_names_of_runs_are_drawn_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ("_a$b$c", "场景")
    runs = read_runs(tuple(write_run(tmp_path / name) for name in names))
    curve = curves_of(runs)[0]
    svg = to_svg(curve.draw, curve.name, "label")
    assert all(f">{name}</text>" in svg.replace("> ", ">") for name in names)
