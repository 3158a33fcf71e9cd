"""Scores of a finished run: training views at their refined poses and with their exposures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.cli import main
from raymine.evaluate import FitConfig, fit
from raymine.evaluate.corrections import NO_EXPOSURE, corrections_of
from raymine.evaluate.fit import FitChoice, ViewFit, starting_poses
from raymine.experiment import LoadedRun, frames_by_name, load_run, score_frames, train
from raymine.scenes.bank import open_bank
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support.killed_run import TINY
from support.rings import COUNT, write_ring
from support.runs import request

GAIN = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that fits poses and exposures, with one of its training views held out."""
    tmp_path = tmp_path_factory.mktemp("scores")
    overrides = {**TINY, "poses": PoseConfig(), "exposure": ExposureConfig()}
    asked = request(write_ring(tmp_path / "ring"), tmp_path / "run", steps=60, overrides=overrides, hold_out=1)
    return train(asked).run


@pytest.fixture
def loaded(folder: Path) -> LoadedRun:
    """The run, with corrections that can be seen: all cameras are moved, one is turned, and one photo is dark."""
    run = load_run(folder, device="cpu")
    assert run.state.poses is not None
    assert run.state.exposure is not None
    with torch.no_grad():
        run.state.poses.twist.zero_()
        run.state.poses.twist[:, 3:] = torch.tensor([0.05, 0.0, 0.0])
        run.state.poses.twist[2, :3] = torch.tensor([0.0, 0.0, 0.1])
        run.state.exposure.code.zero_()
        run.state.exposure.code[3, :3] = float(np.log(GAIN))
    return run


def test_corrections_are_those_of_the_images_that_were_trained_on(loaded: LoadedRun) -> None:
    frames = loaded.scene.of_split("train")
    (held_out,) = set(frames) - set(loaded.trained)
    found = corrections_of(loaded.state, loaded.scene, frames, loaded.trained)
    own = [frames.index(frame) for frame in loaded.trained]
    assert found.poses[own] == pytest.approx(loaded.training_poses())
    other = frames.index(held_out)
    assert found.poses[other] == pytest.approx(loaded.scene.frames[held_out].pose)
    assert found.codes[other] == NO_EXPOSURE
    assert np.array(found.codes)[own][3, 0] < -0.5
    assert found.words() == (
        "11 of them at the poses that training refined and with the exposures that training fitted"
    )
    tests = corrections_of(loaded.state, loaded.scene, loaded.scene.of_split("test"), loaded.trained)
    assert tests.words() == ""


def test_training_views_are_scored_at_refined_poses_with_exposures(loaded: LoadedRun) -> None:
    """The same field gives the same scores if the refined poses are given poses, and photos are not corrected."""
    frames = loaded.trained
    with open_bank(loaded.scene, frames) as images:
        found = score_frames(loaded, frames, images)
        moved = list(loaded.scene.frames)
        for frame, pose in zip(frames, loaded.training_poses(), strict=True):
            moved[frame] = replace(moved[frame], pose=pose)
        plain = replace(loaded, scene=replace(loaded.scene, frames=tuple(moved)))
        plain.state.poses = None
        direct = score_frames(plain, frames, images)
        plain.state.exposure = None
        bright = score_frames(plain, frames, images)
    assert [view.psnr for view in found.views] == pytest.approx([view.psnr for view in direct.views])
    assert [view.psnr for view in found.views][3] != pytest.approx(bright.views[3].psnr, abs=0.1)
    assert found.protocol is not None
    assert bright.protocol is not None
    assert "at the poses that training refined and with the exposures that training" in found.protocol.sentence()
    assert found.protocol.to_json()["digest"] != bright.protocol.to_json()["digest"]
    assert bright.protocol.corrections == ""


@pytest.mark.parametrize("what", ["poses", "exposure", "both"])
def test_fit_of_a_training_view_starts_at_its_refined_pose_and_its_exposure(
    loaded: LoadedRun, what: FitChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fits that change nothing leave the scores without fitting, which are those of the start."""
    frames = loaded.trained[2:4]
    monkeypatch.setattr(fit, "_fit", lambda view, *_: ViewFit(code=view.code))
    with open_bank(loaded.scene, frames) as images:
        found = score_frames(loaded, frames, images, fit=FitConfig(what, steps=1, pixels=8))
    assert found.fitted is not None
    assert [view.psnr for view in found.fitted.views] == pytest.approx([view.psnr for view in found.views])
    assert found.fitted.fits[1].code[0] < -0.5


def test_fit_that_is_dropped_keeps_the_exposure_of_training(loaded: LoadedRun) -> None:
    frames = loaded.trained[3:4]
    with open_bank(loaded.scene, frames) as images:
        config = FitConfig("exposure", steps=1, pixels=8, exposure_lr=5.0)
        found = score_frames(loaded, frames, images, fit=config)
    assert found.fitted is not None
    assert not found.fitted.fits[0].kept, "a step this long makes everything worse"
    assert found.fitted.views[0].psnr == pytest.approx(found.views[0].psnr)


def test_view_that_was_not_trained_on_starts_where_the_others_moved(loaded: LoadedRun) -> None:
    aligned = starting_poses(loaded.state, loaded.scene, loaded.scene.of_split("train"), loaded.trained)
    (held_out,) = set(loaded.scene.of_split("train")) - set(loaded.trained)
    number = loaded.scene.of_split("train").index(held_out)
    shift = aligned[number, :, 3] - loaded.scene.frames[held_out].pose[:, 3]
    assert float(np.linalg.norm(shift)) > 0.01, "a view that was not trained on moves with the others"


def test_output_of_eval_says_what_was_corrected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(folder), "--split", "train", "--pictures", "none"]) == 0
    told = capsys.readouterr()
    assert "11 of them at the poses that training refined" in told.out
    assert "too low" not in told.err
    assert main(["eval", str(folder), "--pictures", "none"]) == 0
    told = capsys.readouterr()
    assert "refined" not in told.out
    assert "may be too low" in " ".join(told.err.split())
    assert COUNT == 12


def test_views_of_an_evaluation_are_found_by_name_where_names_repeat(loaded: LoadedRun) -> None:
    """Cameras in folders of their own have photos of the same names, and an evaluation of some views numbers these."""
    some = [loaded.scene.frames[0]] * 8
    frames = tuple(replace(f, image=Path(f"cam{i // 4}/{i % 4}.png"), split="test") for i, f in enumerate(some))
    scene = replace(loaded.scene, frames=frames)
    assert frames_by_name(scene, ["0", "1", "2", "3", "0-2", "1-2", "2-2", "3-2"])["3-2"] == 7
    # Of two views, evenly spread, the second has a name that the first camera has too.
    assert frames_by_name(scene, ["2", "2-2"]) == {"2": 2, "2-2": 6}
    assert frames_by_name(scene, ["5"]) == {}
    assert frames_by_name(scene, []) == {}
