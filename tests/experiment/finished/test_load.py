"""Opening trained runs."""

from __future__ import annotations

from pathlib import Path

from raymine.experiment import load_run, train
from raymine.recipes.policies import fitting_overrides
from support.disc_scene import write_scene_of_eight
from support.killed_run import TINY
from support.runs import request


def test_run_with_refined_poses_and_images_left_out_is_opened(tmp_path: Path) -> None:
    scene = write_scene_of_eight(tmp_path / "scene")
    overrides = {**TINY, **fitting_overrides(poses=True, exposure=False)}
    train(request(scene, tmp_path / "run", steps=3, leave_out=("r_1",), overrides=overrides))
    loaded = load_run(tmp_path / "run", device="cpu")
    assert [loaded.scene.frames[i].image.stem for i in loaded.trained] == ["r_0", "r_2", "r_3", "r_4"]
    assert loaded.training_poses().shape == (4, 3, 4)
