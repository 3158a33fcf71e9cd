"""`raymine reproduce`: equal bits on a CPU, and names for what differs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raymine.cli import main
from raymine.experiment import train
from raymine.experiment.finished.reproduce import compare_results, reproduction_request
from raymine.recipes.registry import RECIPES
from raymine.recipes.techniques import Techniques
from raymine.rundir import RunDir
from support.depth_scene import write_depth_scene
from support.disc_scene import write_scene
from support.moving_scene import write_moving_scene
from support.runs import StopAt, request
from support.scene_writers import ring, write_llff

SOONER = {"voxels": {"field.grow_at": (2, 4)}}
"""Settings under which a run of few steps does what a long one does later on."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return write_scene(tmp_path / "scene")


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    capsys.readouterr()
    code = main(["reproduce", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("{") else out, err


def test_run_on_a_cpu_is_reproduced_bit_for_bit(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(request(scene, Path("runs/first"), steps=20, hold_out=1))
    code, found, err = called(capsys, "first", "--json")
    assert code == 0, err
    assert (found["verdict"], found["origins"], found["tensors"]) == ("equal", [], [])
    assert "Reproduced: all" in err
    again = RunDir.open(Path(found["rerun"])).read_manifest()
    assert (again.recipe, again.seed, again.step) == (RunDir.open(Path("runs/first")).read_manifest().recipe, 0, 20)
    assert again.held_out_psnr == RunDir.open(Path("runs/first")).read_manifest().held_out_psnr


def test_stopped_and_time_limited_runs_are_reproduced(scene: Path) -> None:
    train(request(scene, Path("runs/stopped"), steps=40), observer=StopAt(16))
    train(replace(request(scene, Path("runs/timed")), steps=None, max_seconds=0.3))
    for name in ("stopped", "timed"):
        rerun = train(reproduction_request(Path("runs") / name)).run
        assert compare_results(Path("runs") / name, rerun).verdict == "equal", name


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_reproduced_bit_for_bit_on_a_cpu(recipe: str, scene: Path, tmp_path: Path) -> None:
    if recipe == "dynamic":
        scene = write_moving_scene(tmp_path / "moving")
    elif recipe == "unbounded":
        scene = write_llff(ring(), tmp_path / "llff")
    overrides = {"batch.samples": 2048, **SOONER.get(recipe, {})}
    train(request(scene, Path("runs/first"), steps=6, recipe=recipe, overrides=overrides, evaluate_views=0))
    rerun = train(reproduction_request(Path("runs/first"))).run
    found = compare_results(Path("runs/first"), rerun)
    assert (found.verdict, found.origins) == ("equal", ())


def test_changed_image_is_named_before_anything_is_trained(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(request(scene, Path("runs/first"), steps=8))
    picture = scene / "train/r_90.png"
    pixels = np.asarray(Image.open(picture)).copy()
    pixels[3:5, 3:5, :3] = 255
    Image.fromarray(pixels).save(picture)
    code, _, err = called(capsys, "first")
    assert code == 4
    assert "its input has changed: the image train/r_90.png." in err
    code, found, err = called(capsys, "first", "--anyway", "--json")
    assert code == 1
    assert {each["what"] for each in found["origins"]} == {"images (digest)", "image train/r_90.png"}
    assert found["first_step"] is not None or found["tensors"]
    assert "What differs: images (digest), image train/r_90.png" in err


def test_changed_depth_map_is_named_where_the_run_uses_it(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_depth_scene(tmp_path / "depth", [f"d{i}.png" for i in range(9)])
    train(request(folder, Path("runs/first"), steps=4, techniques=Techniques(depth_loss=1.0), evaluate_views=0))
    train(request(folder, Path("runs/plain"), steps=4, evaluate_views=0))
    assert called(capsys, "first")[0] == 0
    Image.fromarray(np.full((8, 8), 2000, np.uint16)).save(folder / "d3.png")
    code, _, err = called(capsys, "first")
    assert code == 4
    assert "its input has changed: the image 3.png (depth map)." in err
    code, found, _ = called(capsys, "first", "--anyway", "--json")
    assert [each["what"] for each in found["origins"]] == ["image 3.png (depth map)"]
    assert called(capsys, "plain")[0] == 0


def test_other_seed_and_package_are_named(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(request(scene, Path("runs/first"), steps=8))
    train(request(scene, Path("runs/second"), steps=8, seed=3))
    code, found, err = called(capsys, "first", "--against", "runs/second", "--json")
    assert code == 1
    assert [each["what"] for each in found["origins"]] == ["seed"]
    assert "What differs: seed." in err
    path = Path("runs/second/manifest.json")
    stored = json.loads(path.read_text())
    stored["attempts"][-1]["environment"]["packages"]["numpy"] = "1.0"
    path.write_text(json.dumps(stored))
    code, out, err = called(capsys, "first", "--against", "runs/second")
    assert code == 1
    assert "package numpy" in out
    assert "What differs: package numpy, seed." in err


def test_run_that_never_trained_and_wrong_names_are_refused(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "nothing")[0] == 4
    train(request(scene, Path("runs/first"), steps=8))
    code, _, err = called(capsys, "first", "--threads", "0")
    assert code == 2
    assert "error: --threads must be between 1 and 1024, got 0." in err
    for file in Path("runs/first/checkpoints").glob("*.safetensors"):
        os.truncate(file, 10)
    code, _, err = called(capsys, "first")
    assert code == 4
    assert "Every checkpoint in" in err
    assert "Training" not in err, "the damage is found before the rerun"
    for file in Path("runs/first/checkpoints").iterdir():
        file.unlink()
    code, _, err = called(capsys, "first")
    assert code == 4
    assert "no checkpoint" in err
    assert called(capsys, "first", "--tolerance", "-1")[0] == 2


def test_equal_bits_are_not_expected_of_a_run_of_several_processes(scene: Path) -> None:
    train(request(scene, Path("runs/first"), steps=4))
    rerun = train(reproduction_request(Path("runs/first"))).run
    manifest = json.loads(Path("runs/first/manifest.json").read_text())
    assert manifest["attempts"][0]["processes"] == 1
    manifest["attempts"][0]["processes"] = 2
    Path("runs/first/manifest.json").write_text(json.dumps(manifest))
    found = compare_results(Path("runs/first"), rerun)
    assert not found.exact
    assert [(each.what, each.first, each.second) for each in found.origins] == [("processes", 2, 1)]
