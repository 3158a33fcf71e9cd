"""`init_from`: a run that starts from the parameters of another one."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from raymine import checkpoint
from raymine.errors import CheckpointError, ConfigError, RunError
from raymine.experiment import train
from raymine.fields.voxel_field import VoxelField
from raymine.metrics_log import read_rows
from raymine.recipes.policies import fitting_overrides
from raymine.rundir import RunDir
from support.disc_scene import write_scene
from support.killed_run import TINY
from support.runs import StopAt, request

SHAPE = ("field.grid.levels", "field.grid.log2_entries", "field.grid.finest")
LOOSE = {"sampler.resolution": 8, "sampler.step": 0.2, "batch.samples": 256, "field.grid.levels": 2}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene") / "scene")


@pytest.fixture(scope="module")
def half(scene: Path) -> Path:
    """A run at half the size of the images."""
    train(request(scene, scene.parent / "half", downscale=2))
    return scene.parent / "half"


VOXELS = {
    "field.resolutions": [5, 9],
    "field.grow_at": [6],
    "field.rows": 1000,
    "field.variation_rows": 64,
    "sampler.resolution": 8,
    "sampler.step": 0.2,
    "batch.samples": 256,
}
"""A grid of voxels of 9^3 from step 6 on."""
# Twists that go on moving to the end, so that they are told from those of a single step.
FITTED = {**TINY, **fitting_overrides(poses=True, exposure=True), "poses.final": 1.0}


@pytest.fixture(scope="module")
def voxels(scene: Path) -> Path:
    """A run whose grid has grown."""
    train(request(scene, scene.parent / "voxels", steps=20, recipe="voxels", overrides=VOXELS))
    return scene.parent / "voxels"


@pytest.fixture(scope="module")
def fitted(scene: Path) -> Path:
    """A run with corrections of the poses and exposures of three images: r_0, r_90 and r_270."""
    train(request(scene, scene.parent / "fitted", overrides=FITTED, hold_out=1))
    assert list(json.loads((scene.parent / "fitted/images.json").read_text())) == [
        f"train/r_{angle}.png" for angle in (0, 90, 270)
    ]
    return scene.parent / "fitted"


def tensors(run: Path) -> dict[str, torch.Tensor]:
    latest = checkpoint.load_latest(run / "checkpoints")
    assert latest is not None
    return latest.checkpoint.tensors


def events(run: Path) -> list[dict]:
    return [row for row in read_rows(run / "events.jsonl") if row["kind"] == "init"]


def test_takes_parameters_and_grid_but_no_moments(scene: Path, half: Path, tmp_path: Path) -> None:
    train(request(scene, tmp_path / "full", init_from=half, steps=1))
    (event,) = events(tmp_path / "full")
    assert event["message"] == f"started from step 40 of {half}, with {len(event['data']['taken'])} tensors of it"
    assert {"field.table", "sampler.values"} <= set(event["data"]["taken"])
    assert event["data"]["left"] == []
    full, source = tensors(tmp_path / "full"), tensors(half)
    # One step with a rate of 1/100 of the full one moves parameters by at most that.
    assert (full["field.table"] - source["average.table"]).abs().max() < 3e-4
    assert torch.equal(full["sampler.values"], source["sampler.values"])
    manifest = RunDir.open(tmp_path / "full")
    stored = manifest.read_config().init_from
    assert stored is not None
    assert (stored.run, stored.step) == (str(half), 40)
    saved = checkpoint.load_latest(tmp_path / "full/checkpoints")
    assert saved is not None
    assert saved.checkpoint.scalars["sampler.swept"] is True
    assert saved.checkpoint.scalars["adam.updates"] == 1


def test_begins_where_the_other_ended_and_ends_better(scene: Path, half: Path, tmp_path: Path) -> None:
    anew = train(request(scene, tmp_path / "anew", steps=8))
    begun = train(request(scene, tmp_path / "begun", steps=8, init_from=half))
    assert begun.loss is not None
    assert anew.loss is not None
    assert begun.loss < 0.85 * anew.loss


def test_resumes_bit_for_bit_also_after_the_other_has_gone(scene: Path, half: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(half, other)
    train(request(scene, tmp_path / "whole", init_from=other))
    train(request(scene, tmp_path / "parts", init_from=other), observer=StopAt(16))
    shutil.rmtree(other)
    train(request(scene, tmp_path / "parts", init_from=other, resume=True))
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    with pytest.raises(ConfigError, match="was started with other settings: init_from"):
        train(request(scene, tmp_path / "parts", resume=True, steps=60))


def test_field_keeps_the_shape_of_the_other_run(scene: Path, half: Path, tmp_path: Path) -> None:
    loose = {key: value for key, value in LOOSE.items() if key not in SHAPE}
    train(request(scene, tmp_path / "run", init_from=half, steps=2, overrides=loose))
    run, source = RunDir.open(tmp_path / "run").read_config(), RunDir.open(half).read_config()
    assert run.train.field == source.train.field
    assert run.downscale == 1
    train(request(scene, tmp_path / "run", init_from=half, steps=4, overrides=loose, resume=True))


def test_what_does_not_fit_is_named(scene: Path, half: Path, tmp_path: Path) -> None:
    changes = {**json.loads(json.dumps(LOOSE)), "sampler.resolution": 16}
    train(
        request(
            scene,
            tmp_path / "run",
            init_from=half,
            steps=2,
            overrides={k: changes[k] for k in changes if k not in SHAPE},
        )
    )
    (event,) = events(tmp_path / "run")
    assert event["level"] == "warning"
    assert event["data"]["left"] == ["sampler.values ([1, 512], here [1, 4096])"]


def test_other_model_is_refused_and_leaves_no_folder(scene: Path, half: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="its field is HashFieldConfig, and that of this run is MlpFieldConfig"
    ) as caught:
        train(request(scene, tmp_path / "run", init_from=half, recipe="vanilla-grid", overrides={}))
    assert "`recipe='ngp'`" in caught.value.hint
    with pytest.raises(ConfigError, match="nothing of its field fits"):
        train(request(scene, tmp_path / "run", init_from=half, overrides={"field.width": 8, "field.geometry": 3}))
    assert not (tmp_path / "run").exists()


def test_runs_that_cannot_be_opened(scene: Path, half: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run folder"):
        train(request(scene, tmp_path / "run", init_from=tmp_path / "none"))
    shutil.copytree(half, tmp_path / "copy")
    for path in (tmp_path / "copy/checkpoints").glob("*.safetensors"):
        path.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"Every checkpoint in .* is damaged"):
        train(request(scene, tmp_path / "run", init_from=tmp_path / "copy"))
    shutil.rmtree(tmp_path / "copy/checkpoints")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        train(request(scene, tmp_path / "run", init_from=tmp_path / "copy"))
    with pytest.raises(ConfigError, match="is the folder of this run"):
        train(request(scene, half, init_from=half, resume=True))


def test_other_scene_is_a_warning_and_other_world_is_refused(half: Path, tmp_path: Path) -> None:
    other = write_scene(tmp_path / "scene", shade=90)
    text = (other / "transforms_train.json").read_text()
    (other / "transforms_train.json").write_text(text.replace("0.7", "0.8"))
    result = train(request(other, tmp_path / "run", init_from=half, steps=2))
    assert result.status == "finished"

    from raymine.experiment.prepare import prepare

    warned = prepare(request(other, tmp_path / "run2", init_from=half)).scene.warnings
    assert any("was trained on another scene" in sentence for sentence in warned)
    # The same frames as one transforms.json: that format has a scale of its own.
    capture = json.loads(text)
    for frame in capture["frames"]:
        frame["file_path"] += ".png"
    (other / "transforms_train.json").unlink()
    (other / "transforms_test.json").unlink()
    (other / "transforms.json").write_text(json.dumps(capture))
    with pytest.raises(ConfigError, match="whose world is another one"):
        train(request(other, tmp_path / "run3", init_from=half))


def test_grid_of_voxels_is_taken_with_its_resolution(scene: Path, voxels: Path, tmp_path: Path) -> None:
    train(request(scene, tmp_path / "run", steps=1, recipe="voxels", init_from=voxels, overrides={"sampler.step": 0.2}))
    own, theirs = tensors(tmp_path / "run"), tensors(voxels)
    assert torch.equal(own["field.vertices"], theirs["field.vertices"])
    saved = checkpoint.load_latest(tmp_path / "run/checkpoints")
    assert saved is not None
    assert saved.checkpoint.scalars["field.resolution"] == 9


def test_evaluated_grid_of_voxels_finds_the_rows_that_were_taken(scene: Path, voxels: Path) -> None:
    from raymine.experiment.prepare import prepare
    from raymine.experiment.stopwatch import Stopwatch
    from raymine.experiment.work import make_ready

    prepared = prepare(request(scene, None, recipe="voxels", init_from=voxels, overrides={"sampler.step": 0.2}))
    with contextlib.ExitStack() as stack:
        state = make_ready(prepared, None, Stopwatch(), stack).state
        assert isinstance(state.module, VoxelField)
        assert isinstance(state.shown, VoxelField)
        assert state.shown.resolution == state.module.resolution == 9
        assert torch.equal(state.shown.index, state.module.index)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"field.degree": 1}, "field.colours"),
        ({"field.rows": 1200}, "field.colours"),
        ({"field.resolutions": [5], "field.grow_at": []}, "finer than `resolutions` allow, 5\\^3"),
    ],
)
def test_grid_of_voxels_that_does_not_fit_as_a_whole_is_not_taken(
    changes: dict, fault: str, scene: Path, voxels: Path, tmp_path: Path
) -> None:
    wanted = request(scene, tmp_path / "run", recipe="voxels", init_from=voxels, overrides={**VOXELS, **changes})
    with pytest.raises(ConfigError, match=f"nothing of its field fits this model: .*{fault}"):
        train(wanted)


def test_poses_and_exposures_of_other_images_are_matched_by_name(scene: Path, fitted: Path, tmp_path: Path) -> None:
    # r_180 is trained on here, and r_0 is not: as many images as there, but others.
    train(request(scene, tmp_path / "run", steps=1, overrides=FITTED, leave_out=("r_0",), init_from=fitted))
    assert list(json.loads((tmp_path / "run/images.json").read_text())) == [
        f"train/r_{angle}.png" for angle in (90, 180, 270)
    ]
    own, theirs = tensors(tmp_path / "run"), tensors(fitted)
    for name, rate in (("poses.twist", 1e-3), ("exposure.code", 2e-3)):
        expected = torch.stack((theirs[name][1], torch.zeros(6), theirs[name][2]))
        # One step with a rate of 1/100 of the full one.
        assert torch.allclose(own[name], expected, atol=0.02 * rate)
        assert theirs[name].abs().max() > rate
    (event,) = events(tmp_path / "run")
    assert {"poses.twist", "exposure.code"} <= set(event["data"]["taken"])
    assert event["data"]["left"] == [
        "poses.twist of 1 of 3 images (not trained on there)",
        "exposure.code of 1 of 3 images (not trained on there)",
    ]


def test_poses_of_a_run_that_did_not_record_its_images_are_left(scene: Path, fitted: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(fitted, other)
    (other / "images.json").unlink()
    train(request(scene, tmp_path / "run", steps=1, overrides=FITTED, hold_out=1, init_from=other))
    (event,) = events(tmp_path / "run")
    assert event["level"] == "warning"
    assert event["data"]["left"] == [
        "poses.twist (which image each row of it belongs to is not known)",
        "exposure.code (which image each row of it belongs to is not known)",
    ]
    assert tensors(tmp_path / "run")["poses.twist"].abs().max() < 1e-4
