"""What users are told about refined poses: refusals, warnings, limits, and runs that are resumed and loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from raymine.config import model_digest
from raymine.errors import ConfigError
from raymine.experiment import load_run, train
from raymine.experiment.watchers.pose_watch import PoseWatch, fitting_warnings, in_words
from raymine.metrics_log import read_rows
from raymine.step import create_state
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support.disc_scene import write_scene
from support.killed_run import TINY
from support.runs import StopAt, request, rewrite_checkpoint
from support.scenes import ball_scene
from support.step import CONFIG

SCENE, DATA = ball_scene()
POSES = replace(CONFIG, poses=PoseConfig())
BOTH = {**TINY, "poses": {}, "exposure": {}}
ENDS = {"whole": {}, "before": {"until": 0.25, "fade": 0.2}, "at": {"until": 0.5}, "after": {"until": 0.75}}
"""Poses of runs of 32 steps that are stopped at step 16."""


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (POSES, "poses are refined against each other"),
        (replace(CONFIG, exposure=ExposureConfig()), "mean of all images"),
    ],
)
def test_one_image_is_refused(config: object, words: str) -> None:
    with pytest.raises(ConfigError, match="needs at least 2 training images, and this run has 1") as error:
        fitting_warnings(config, SCENE, (0,))  # type: ignore[arg-type]
    assert words in error.value.message
    assert error.value.hint is not None
    assert fitting_warnings(CONFIG, SCENE, (0,)) == ()


def test_cameras_in_one_place_are_warned_about() -> None:
    assert fitting_warnings(POSES, SCENE, range(8)) == ()
    together = []
    for frame in SCENE.frames:
        pose = frame.pose.copy()
        pose[:, 3] = (1.0, 2.0, 3.0)
        together.append(replace(frame, pose=pose))
    found = fitting_warnings(POSES, replace(SCENE, frames=tuple(together)), range(8))
    assert "All training cameras are in one place" in found[0]


def test_images_at_the_limit_are_named_once() -> None:
    state = create_state(POSES, DATA, seed=0, device=torch.device("cpu"))
    watch = PoseWatch(state, [f"view_{i}" for i in range(8)])
    assert watch.news() == ""
    assert state.poses is not None
    with torch.no_grad():
        state.poses.twist[[1, 2, 4, 5], 0] = 1.0
    state.poses.clip()
    told = watch.news()
    assert "view_1, view_2, view_4 and 1 more has reached its limit (10 degrees, 0.1 of the scene's scale)" in told
    assert watch.news() == ""
    sizes = watch.mean_sizes()
    assert sizes is not None
    assert sizes[0] == pytest.approx(5.0)
    assert in_words(*sizes) == "poses moved by 5.00 degrees and 0.00 % of the scene on average"
    plain = create_state(CONFIG, DATA, seed=0, device=torch.device("cpu"))
    assert (PoseWatch(plain, []).news(), PoseWatch(plain, []).mean_sizes()) == ("", None)


def test_run_records_corrections_and_warns_at_the_limit() -> None:
    scene = write_scene(Path("scene"))
    overrides = {**TINY, "poses": {"lr": 0.5, "limit_degrees": 1.0, "until": 1.0}}
    result = train(request(scene, Path("r"), steps=16, overrides=overrides))
    assert result.pose_degrees == pytest.approx(1.0, rel=0.1)
    assert result.pose_distance is not None
    rows = [row for row in read_rows(Path("r/metrics.jsonl")) if row["kind"] == "train"]
    assert rows[-1]["extra"]["pose_degrees"] == pytest.approx(result.pose_degrees)
    events = [row for row in read_rows(Path("r/events.jsonl")) if row["kind"] == "pose-limit"]
    assert [row["level"] for row in events] == ["warning"]
    assert "r_0, r_90, r_180 and 1 more" in events[0]["message"]
    stored = json.loads(Path("r/config.json").read_text())["train"]
    assert stored["poses"]["limit_degrees"] == 1.0
    assert "exposure" not in stored


@pytest.mark.parametrize("ends", ENDS)
def test_resumed_run_equals_an_uninterrupted_one_and_loads(ends: str) -> None:
    scene = write_scene(Path("scene"))
    overrides = {**BOTH, "poses": ENDS[ends]}
    asked = request(scene, Path("whole"), steps=32, overrides=overrides, evaluate_views=0)
    train(asked)
    stopped = train(replace(asked, out=Path("parts")), observer=StopAt(16))
    assert (stopped.status, stopped.step) == ("stopped", 16)
    train(replace(asked, out=Path("parts"), resume=True))
    whole, parts = (load_run(name, device="cpu") for name in ("whole", "parts"))
    assert whole.step == parts.step == 32
    for name, value in whole.state.tensors().items():
        assert torch.equal(value, parts.state.tensors()[name]), name
    assert {"poses.twist", "exposure.code"} <= whole.state.tensors().keys()
    assert whole.trained == (0, 1, 2, 3)
    given = np.stack([whole.scene.frames[i].pose for i in whole.trained])
    moved = whole.training_poses()
    assert moved.shape == given.shape
    assert 1e-5 < np.abs(moved - given).max() < 0.2


def test_run_tells_once_that_poses_stay_as_they_are() -> None:
    scene = write_scene(Path("scene"))
    asked = request(scene, Path("r"), steps=48, overrides={**TINY, "poses": {"until": 0.5}}, evaluate_views=0)
    assert train(asked, observer=StopAt(32)).step == 32
    result = train(replace(asked, resume=True))
    events = [row for row in read_rows(Path("r/events.jsonl")) if row["kind"] == "poses-refined"]
    assert [row["step"] for row in events] == [25]
    assert "poses stay as they are from step 24 on: poses moved by 0." in events[0]["message"]
    rows = [row for row in read_rows(Path("r/metrics.jsonl")) if row["kind"] == "train"]
    assert [bool(row.get("extra", {}).get("pose_degrees")) for row in rows] == [True, False, False]
    assert result.pose_degrees is not None
    assert load_run("r", device="cpu").state.scalars()["poses.ended"] == 24


def test_run_of_an_earlier_version_refines_to_its_end() -> None:
    scene = write_scene(Path("scene"))
    whole = {**TINY, "poses": {"until": 1.0, "final": 1.0}}
    asked = request(scene, Path("whole"), steps=32, overrides=whole, evaluate_views=0)
    train(asked)
    train(replace(asked, out=Path("old")), observer=StopAt(16))
    config = json.loads(Path("old/config.json").read_text())
    config["schema"] = 2
    del config["train"]["poses"]["until"], config["train"]["poses"]["final"]
    Path("old/config.json").write_text(json.dumps(config))
    path = Path("old/checkpoints/step-00000016.json")
    body = json.loads(path.read_text())
    scalars = {name: value for name, value in body["scalars"].items() if name != "poses.ended"}
    meta = {**body["meta"], "config": model_digest(config)}
    changes = {"schema": 2, "scalars": scalars, "meta": meta}
    rewrite_checkpoint(path, load_file(path.with_suffix(".safetensors")), changes)
    # With the flags of that time, which now mean another end.
    flags = replace(asked, out=Path("old"), overrides={**TINY, "poses": {}}, resume=True)
    assert train(flags).step == 32
    expected, found = (load_run(name, device="cpu").state for name in ("whole", "old"))
    assert found.scalars() == expected.scalars()
    assert all(torch.equal(value, found.tensors()[name]) for name, value in expected.tensors().items())
    with pytest.raises(ConfigError, match=r"train\.poses\.until"):
        train(replace(flags, overrides={**TINY, "poses": {"until": 0.7}}))


def test_loaded_run_without_refinement_has_the_poses_of_the_scene() -> None:
    scene = write_scene(Path("scene"))
    train(request(scene, Path("r"), steps=2, evaluate_views=0))
    loaded = load_run("r", device="cpu")
    given = np.stack([loaded.scene.frames[i].pose for i in loaded.trained])
    assert np.array_equal(loaded.training_poses(), given)
    assert not {"poses", "exposure"} & json.loads(Path("r/config.json").read_text())["train"].keys()


def test_resume_with_other_wishes_is_refused() -> None:
    scene = write_scene(Path("scene"))
    train(request(scene, Path("r"), steps=2, evaluate_views=0))
    with pytest.raises(ConfigError, match=r"train\.poses\.lr: absent in the run"):
        train(request(scene, Path("r"), steps=4, overrides=BOTH, evaluate_views=0, resume=True))
