"""Opening trained runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.experiment import load_run, train
from raymine.recipes.policies import fitting_overrides
from raymine.scenes import load_scene
from support.disc_scene import write_scene, write_scene_of_eight
from support.killed_run import TINY
from support.runs import request


def test_run_with_refined_poses_and_images_left_out_is_opened(tmp_path: Path) -> None:
    scene = write_scene_of_eight(tmp_path / "scene")
    overrides = {**TINY, **fitting_overrides(poses=True, exposure=False)}
    train(request(scene, tmp_path / "run", steps=3, leave_out=("r_1",), overrides=overrides))
    loaded = load_run(tmp_path / "run", device="cpu")
    assert [loaded.scene.frames[i].image.stem for i in loaded.trained] == ["r_0", "r_2", "r_3", "r_4"]
    assert loaded.training_poses().shape == (4, 3, 4)


def test_builtin_is_the_built_in_scene_whatever_the_working_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_scene_of_eight(tmp_path / "own")
    monkeypatch.setattr("raymine.scenes.builtin.builtin_scene", lambda: own)
    train(request("builtin", tmp_path / "run", steps=3))  # type: ignore[arg-type]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    other = write_scene(Path("builtin"))
    loaded = load_run(tmp_path / "run", device="cpu")
    assert (loaded.config.scene, loaded.scene.root) == ("builtin", own)
    # A folder of that name is a path, and recorded as one.
    assert len(load_scene("./builtin").frames) == len(load_scene(other).frames) == 5
    train(request(other, tmp_path / "of-folder", steps=3))
    monkeypatch.chdir(tmp_path)
    again = load_run(tmp_path / "of-folder", device="cpu")
    assert again.config.scene == str(tmp_path / "elsewhere" / "builtin")
