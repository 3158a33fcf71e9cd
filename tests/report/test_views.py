"""Test views of a report: those of an evaluation, or rendered ones."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raymine.evaluate.metrics import psnr
from raymine.experiment import LoadedRun, load_run, train
from raymine.report.record import read_runs
from raymine.report.views import views_of
from support.disc_scene import write_scene_of_eight
from support.reports import write_run
from support.runs import request


def never() -> LoadedRun:
    raise AssertionError("the model is not needed")


def test_worst_and_best_views_of_an_evaluation_are_shown(tmp_path: Path) -> None:
    (run,) = read_runs((write_run(tmp_path / "a", views=9),))
    shown = views_of(run, never).views
    assert [view.name for view in shown] == ["v8", "v5", "v3", "v0"]
    assert (shown[0].why, shown[-1].why) == ("the worst", "the best")
    assert [view.name for view in views_of(run, never, names=["v2", "v7", "other"]).views] == ["v2", "v7"]
    assert Image.open(io.BytesIO(shown[0].true)).size == (60, 40)


def test_damaged_and_foreign_pictures_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "eval" / "images" / "v1-true.png").write_bytes(b"no picture")
    (path / "eval" / "images" / "v2-pred.png").unlink()
    assert [view.name for view in views_of(read_runs((path,))[0], never).views] == ["v0"]


def test_run_that_was_not_evaluated_is_rendered(tmp_path: Path) -> None:
    train(request(write_scene_of_eight(tmp_path / "scene"), tmp_path / "run", steps=30))
    (run,) = read_runs((tmp_path / "run",))
    found = views_of(run, partial(load_run, run.path, device="cpu"))
    assert [view.name for view in found.views] == ["r_0", "r_2"]
    assert f"raymine eval {tmp_path / 'run'}" in found.note
    loaded = load_run(tmp_path / "run", device="cpu")
    # The score is that of the whole view, and the JPEG is close to it.
    truth = np.asarray(Image.open(io.BytesIO(found.views[0].true)), dtype=np.float32) / 255
    predicted = np.asarray(Image.open(io.BytesIO(found.views[0].predicted)), dtype=np.float32) / 255
    assert psnr(torch.from_numpy(predicted), torch.from_numpy(truth)) == pytest.approx(found.views[0].psnr, abs=1.0)
    assert loaded.step == 30
    assert views_of(run, never, render=False).views == ()
    assert "raymine eval" in views_of(run, never, render=False).note


def test_run_whose_scene_is_gone_says_so_instead_of_failing(tmp_path: Path) -> None:
    (run,) = read_runs((write_run(tmp_path / "a", views=0),))
    found = views_of(run, partial(load_run, run.path))
    assert found.views == ()
    assert found.note.startswith("No test view could be rendered: ")
