"""Comparison of several runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raymine.report.compare import differing_settings, lead, results
from raymine.report.record import read_runs
from support.reports import CONFIG, write_run


def test_only_settings_that_differ_are_listed(tmp_path: Path) -> None:
    other = {**CONFIG, "train": {**CONFIG["train"], "mining": {"policy": "none"}}, "extra": 1}
    runs = read_runs((write_run(tmp_path / "a"), write_run(tmp_path / "b", config=other)))
    assert differing_settings(runs) == [("train.mining.policy", "hard", "none"), ("extra", "–", "1")]
    assert differing_settings([runs[0], runs[0]]) == []


def test_results_have_one_value_for_each_run_and_no_empty_rows(tmp_path: Path) -> None:
    runs = read_runs((write_run(tmp_path / "a"), write_run(tmp_path / "b", views=0)))
    rows = {name: values for name, *values in results(runs)}
    assert rows["test PSNR (dB)"] == ["29.00", "25.00"]
    assert rows["test SSIM"] == ["0.9000", "–"]
    assert rows["scores from"] == ["eval", "quick look"]
    assert rows["peak host memory"] == ["3.0 MiB", "3.0 MiB"]
    assert "peak device memory" not in rows


def test_lead_names_best_and_lowest_and_warns_of_other_scenes(tmp_path: Path) -> None:
    a, b = read_runs((write_run(tmp_path / "a"), write_run(tmp_path / "b", views=0)))
    assert "that of a, 29.00 dB; the lowest that of b, 25.00 dB." in lead([a, b])
    assert "Scores of b are quick evaluations" in lead([a, b])
    assert "different scenes" not in lead([a, b])
    assert "different scenes" in lead([a, replace(b, manifest=replace(b.manifest, scene_digest="other"))])
    assert "Too few" in lead([a])
