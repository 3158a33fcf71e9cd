"""Reading run folders for a report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raymine.checkpoint import path_of
from raymine.errors import RunError
from raymine.report.record import read_runs
from support.reports import write_run


def test_record_has_the_series_of_the_metrics(tmp_path: Path) -> None:
    (run,) = read_runs((write_run(tmp_path / "a", rows=10),))
    steps, seconds, tau = run.series("extra.tau")
    assert (steps[-1], seconds[-1], tau[-1]) == (160, 10.0, 10.0)
    assert len(run.series("nothing")[0]) == 0
    looked, at, psnr = run.looks("test")
    assert looked.tolist() == [96, 160]
    assert at.tolist() == [6.0, 10.0]
    assert psnr.tolist() == [25.0, 29.0]
    assert run.mean_share == pytest.approx(0.41)
    assert run.share == pytest.approx(0.32)
    assert run.stages == {"training": 10.0, "scene": 2.5}
    assert (run.wall, run.memory, run.policy, run.psnr) == (12.5, {"host": 3 << 20}, "hard", 29.0)
    assert run.setting_values["train.loss[0].kind"] == "l2"


def test_run_without_metrics_or_evaluation_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", views=0)
    (path / "metrics.jsonl").unlink()
    (run,) = read_runs((path,))
    assert run.scores is None
    assert run.psnr == 25.0
    assert run.share is None
    assert len(run.looks("test")[0]) == 0


def test_scores_older_than_the_latest_checkpoint_are_stale(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    saved = path_of(path / "checkpoints", 192)
    saved.parent.mkdir()
    saved.write_text("{}")
    os.utime(saved, (1, 1))
    assert read_runs((path,))[0].scores.stale is False  # type: ignore[union-attr]
    os.utime(path / "eval" / "metrics.json", (0, 0))
    assert read_runs((path,))[0].scores.stale is True  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["{", "[]", '{"images": 3}'])
def test_damaged_evaluation_counts_as_none(tmp_path: Path, text: str) -> None:
    path = write_run(tmp_path / "a")
    (path / "eval" / "metrics.json").write_text(text)
    assert read_runs((path,))[0].scores is None


def test_missing_scores_are_none_and_not_zero(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "eval" / "metrics.json").write_text(json.dumps({"psnr": None, "ssim": None, "images": [{"name": "v0"}]}))
    scores = read_runs((path,))[0].scores
    assert scores is not None
    assert (scores.psnr, scores.views) == (None, (("v0", None, None),))


def test_runs_of_one_name_get_labels_that_differ(tmp_path: Path) -> None:
    paths = tuple(write_run(tmp_path / folder / "run") for folder in "ab")
    runs = read_runs((*paths, write_run(tmp_path / "c")))
    assert [run.label for run in runs] == [str(paths[0]), str(paths[1]), "c"]


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        read_runs((tmp_path,))
