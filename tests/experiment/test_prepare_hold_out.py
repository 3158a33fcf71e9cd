"""Views held out from training: they are never trained on, and only they select a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raymine import checkpoint
from raymine.cli import main
from raymine.errors import ConfigError
from raymine.experiment import load_run, train
from raymine.experiment.prepare import split_training
from raymine.metrics_log import read_rows
from raymine.rundir import RunDir
from raymine.scenes import load_scene
from support.disc_scene import write_scene
from support.runs import StopAt, request


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Training views at 0, 90, 180 and 270 degrees, a test view at 45."""
    return write_scene(tmp_path / "scene")


def names(scene: Path, hold_out: int) -> tuple[list[str], list[str]]:
    """Names of the images that are trained on, and of those held out."""
    loaded = load_scene(scene)
    trained, held_out = split_training(loaded, hold_out)
    return [loaded.frames[i].image.stem for i in trained], [loaded.frames[i].image.stem for i in held_out]


def parameters(run: Path) -> dict[str, torch.Tensor]:
    return load_run(run, device="cpu").state.tensors()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, b[name]) for name, value in a.items())


def test_held_out_views_are_spread_over_the_training_split(scene: Path) -> None:
    assert names(scene, 0) == (["r_0", "r_90", "r_180", "r_270"], [])
    assert names(scene, 1) == (["r_0", "r_90", "r_270"], ["r_180"])
    assert names(scene, 2) == (["r_0", "r_180"], ["r_90", "r_270"])
    assert names(scene, 3) == (["r_90"], ["r_0", "r_180", "r_270"])


def test_holding_out_every_view_or_a_negative_number_raises(tmp_path: Path, scene: Path) -> None:
    with pytest.raises(ConfigError, match="`hold_out=4` leaves nothing to train on: the scene has 4 training views"):
        train(request(scene, tmp_path / "run", hold_out=4))
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="`hold_out` must be 0 or more"):
        request(scene, None, hold_out=-1)


def test_pixels_of_held_out_views_change_no_parameter(tmp_path: Path, scene: Path) -> None:
    def repainted(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(scene, folder)
        noise = np.random.default_rng(0).integers(0, 256, (8, 8, 4), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "train" / f"{name}.png")
        return folder

    found = {}
    for folder in (scene, repainted("r_180"), repainted("r_90")):
        run = train(request(folder, tmp_path / f"run-{folder.name}", steps=20, hold_out=1)).run
        found[folder.name] = parameters(run)
    assert same(found["scene"], found["r_180"])
    assert not same(found["scene"], found["r_90"]), "a view that is trained on must matter, or the test shows nothing"


def test_evaluations_use_held_out_views_and_mark_the_best_checkpoint(tmp_path: Path, scene: Path) -> None:
    result = train(request(scene, tmp_path / "run", hold_out=2))
    looks = [row for row in read_rows(result.run / "metrics.jsonl") if row["kind"] == "eval"]
    assert [(row["step"], row["split"], row["views"]) for row in looks] == [
        (step, "held-out", 2) for step in (10, 20, 30, 40)
    ]
    best = max(looks, key=lambda row: row["psnr"])
    assert checkpoint.read_best(result.run / "checkpoints") == checkpoint.Best(
        best["step"], "held_out_psnr", best["psnr"]
    )
    opened = load_run(result.run, which="best", device="cpu")
    assert (opened.step, opened.notes) == (best["step"], ())
    assert (result.best_step, result.best_held_out_psnr) == (best["step"], best["psnr"])
    assert (result.held_out_psnr, result.test_psnr) == (looks[-1]["psnr"], None)
    manifest = RunDir.open(result.run).read_manifest()
    assert (manifest.held_out_psnr, manifest.best_step) == (result.held_out_psnr, result.best_step)


def test_best_checkpoint_is_the_newest_before_the_first_evaluation(tmp_path: Path, scene: Path) -> None:
    train(request(scene, tmp_path / "run", steps=64, hold_out=1, evaluate_views=0), observer=StopAt(16))
    opened = load_run(tmp_path / "run", which="best", device="cpu")
    assert opened.step == 16
    assert "Held-out views have not been looked at yet" in opened.notes[0]


def test_resume_needs_the_same_hold_out_and_equals_the_uninterrupted_run(tmp_path: Path, scene: Path) -> None:
    whole = train(request(scene, tmp_path / "whole", hold_out=1))
    train(request(scene, tmp_path / "parts", hold_out=1), observer=StopAt(16))
    for other in (0, 2):
        with pytest.raises(ConfigError, match=f"hold_out: 1 in the run, {other} asked"):
            train(request(scene, tmp_path / "parts", resume=True, hold_out=other))
    resumed = train(request(scene, tmp_path / "parts", resume=True, hold_out=1))
    assert same(parameters(whole.run), parameters(resumed.run))
    assert (resumed.best_step, resumed.held_out_psnr) == (whole.best_step, whole.held_out_psnr)
    assert checkpoint.read_best(whole.run / "checkpoints") == checkpoint.read_best(resumed.run / "checkpoints")


def test_result_manifest_and_run_list_use_the_same_psnr_names(
    tmp_path: Path, scene: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ("train_psnr", "test_psnr", "held_out_psnr", "best_step", "best_held_out_psnr")
    common = ["train", str(scene), "--steps", "4", "--device", "cpu", "--json", "--out"]
    told = {}
    for name, options in (("plain", []), ("held", ["--hold-out", "2"])):
        assert main([*common, f"runs/{name}", *options]) == 0
        out, err = capsys.readouterr()
        told[name] = json.loads(out)
        figure = told[name]["test_psnr" if name == "plain" else "held_out_psnr"]
        assert f"{figure:.2f} dB on {'test' if name == 'plain' else 'held-out'} views" in err.splitlines()[-2]
        assert ("Held out: 2 of 4 training views" in err) == (name == "held")
    assert main(["runs", "--json"]) == 0
    listed = {run["name"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    for name, result in told.items():
        manifest = json.loads((tmp_path / f"runs/{name}/manifest.json").read_text())
        assert {key: result[key] for key in keys} == {key: listed[name][key] for key in keys}
        assert {key: result[key] for key in keys} == {key: manifest[key] for key in keys}
    assert main(["runs"]) == 0
    table = capsys.readouterr().out
    heads = [[cell.strip() for cell in line.split("┃")] for line in table.splitlines() if "┃" in line]
    titles = [" ".join(words) for words in zip(*heads, strict=True)]
    assert {"train PSNR", "test PSNR", "held-out PSNR"} <= set(titles)
