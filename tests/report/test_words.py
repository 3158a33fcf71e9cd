"""Sentences of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raymine.report.record import read_runs
from raymine.report.words import lead, mining, score
from support.reports import write_run


def test_lead_says_what_was_trained_for_how_long_and_how_good_it_is(tmp_path: Path) -> None:
    (run,) = read_runs((write_run(tmp_path / "a"),))
    sentences = lead(run)
    assert sentences[0].startswith("The recipe fake was trained on the scene fake on A <fast> CPU: 192 steps, 10.0 s")
    assert "3 test views" in sentences[1]
    assert "29.00 dB" in sentences[1]
    many = replace(run, manifest=replace(run.manifest, train_images=60, error="no space"), status="failed")
    told = " ".join(lead(many))
    assert "trained on 60 images of the scene fake" in told
    assert "its state is: failed" in told
    assert "no space" in told


def test_score_says_how_to_evaluate_a_run_that_was_not(tmp_path: Path) -> None:
    (run,) = read_runs((write_run(tmp_path / "a", views=0),))
    assert f"raymine eval {tmp_path / 'a'}" in score(run)
    assert "quick evaluation of some pixels at the end has PSNR 25.00 dB" in score(run)


def test_mining_is_explained_with_the_numbers_of_the_run(tmp_path: Path) -> None:
    (run,) = read_runs((write_run(tmp_path / "a", rows=10),))
    policy, share, tau = mining(run)
    assert "policy hard" in policy
    assert "41\u00a0%" in share
    assert "from 1.0 to 10.0" in tau
    assert "one sample in 10" in tau
