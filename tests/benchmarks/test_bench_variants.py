"""Runs of a plan: which are made, what is written when, and what a call that was cut leaves to the next."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raymine import recipes
from raymine.config import replace_fields
from raymine.contracts import Scene
from raymine.recipes.policies import policy_overrides
from raymine.recipes.techniques import with_techniques
from raymine.scenes import load_scene
from support.disc_scene import write_scene_of_eight
from support.paths import REPOSITORY
from support.scripts import script
from support.step import CONFIG

variants = script("bench_variants.py")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recipes.RECIPES, "ngp", lambda scene, device: CONFIG)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene_of_eight(tmp_path / "data" / "discs" / "disc")


def bench(monkeypatch: pytest.MonkeyPatch, *options: object) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_variants.py", *(str(each) for each in options), "--device", "cpu"])
    code: int = variants.main()
    return code


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_combinations_are_trained_and_their_rows_complete(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    asked = ("--policies", "none,hard", "--seeds", 2, "--seconds", 0.3, "--looks", "0.1,0.3")
    assert bench(monkeypatch, scene, *asked, "--out", out) == 0
    rows = [row for row in written(out) if row["row"] == "run"]
    assert [(row["run"]["seed"], row["policy"]) for row in rows] == [(0, "none"), (0, "hard"), (1, "none"), (1, "hard")]
    for row in rows:
        assert (row["recipe"], row["width"], row["train_views"]) == ("ngp", 16, 5)
        assert row["protocol"].startswith("Protocol ")
        assert "all 3 test images" in row["protocol"]
        assert len(row["psnr"]) == 2
        assert row["seconds"] >= 0.3
        assert row["frames_per_second"] > 0
        assert (row["memory"] > 1 << 20, row["memory_of"]) == (True, "process")
        assert row["environment"]["packages"]["torch"]
    looks = [row for row in written(out) if row["row"] == "look"]
    assert [[look["seconds"], look["psnr"]] for look in looks] == [at for row in rows for at in row["psnr"]]
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| disc 16x16")]
    assert [(line[1], line[2], line[4]) for line in lines] == [("ngp", "none", "2"), ("ngp", "hard", "2")]
    assert " to " in lines[0][5]


def test_plan_holds_views_out_starts_from_small_images_and_goes_on_after_a_failure(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "rows.jsonl"
    entries = [
        {"scene": "disc", "name": "no such setting", "set": {"batch.sample": 1}},
        {"scene": "disc", "hold_out": 2, "pixels": 3, "techniques": {"opacity_loss": 0.1}},
        {"scene": "disc", "name": "half first", "init_from": {"seconds": 0.2, "downscale": 2}, "looks": [0.25, 0.4]},
    ]
    plan.write_text(json.dumps(entries))
    data = ("--data", tmp_path / "data", "--seconds", 0.5)
    assert bench(monkeypatch, "--plan", plan, *data, "--out", out) == 1
    rows = [row for row in written(out) if row["row"] != "look"]
    assert [row["row"] for row in rows] == ["failed", "run", "run"]
    assert "batch.sample" in rows[0]["error"]
    assert rows[1]["protocol"].startswith("2 views held out from training, every 3th pixel")
    assert rows[1]["train_views"] == 3
    assert rows[2]["init_seconds"] >= 0.2
    assert rows[2]["seconds"] == pytest.approx(0.5, abs=0.3)
    assert [at for at, _ in rows[2]["psnr"]] == sorted(at for at, _ in rows[2]["psnr"])
    assert rows[2]["psnr"][0][0] > rows[2]["init_seconds"]


def test_cut_keeps_the_looks_so_far_and_the_next_call_continues(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "rows.jsonl", ("--policies", "none,hard", "--seconds", 0.3, "--looks", "0.05,0.1")
    score, calls = variants.Views.score, []

    def cut(self: Any, renderer: Any) -> Any:
        calls.append(renderer)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return score(self, renderer)

    monkeypatch.setattr(variants.Views, "score", cut)
    with pytest.raises(KeyboardInterrupt):
        bench(monkeypatch, scene, *options, "--out", out)
    kept = [(row["row"], row["run"]["mining"]) for row in written(out)]
    assert kept == [("look", "none")] * 3 + [("run", "none"), ("look", "hard")]
    with out.open("a") as file:
        file.write('{"benchmark": "variants", "row": "ru')
    monkeypatch.setattr(variants.Views, "score", score)
    more = tmp_path / "more.jsonl"
    assert bench(monkeypatch, scene, *options, "--out", more, "--done", out) == 0
    assert {row["run"]["mining"] for row in written(more)} == {"hard"}
    table = [line.split(" | ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("| disc")]
    assert table == ["none", "hard"]


def test_runs_that_do_not_fit_are_left_out_and_the_list_says_what_is_expected(
    scene: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, scene, "--recipes", "ngp,planes", "--within", 0) == 0
    assert capsys.readouterr().out.count("left out: disc") == 2
    assert bench(monkeypatch, "nowhere", "--data", scene) == 0
    assert "the scene is not in" in capsys.readouterr().out
    assert bench(monkeypatch, scene, "--recipes", "ngp,planes", "--seconds", 60, "--list") == 0
    said = capsys.readouterr().out
    assert "68 s  disc ngp seed 0 60 s" in said
    assert "136 s  2 of 2 runs" in said
    assert bench(monkeypatch, scene, "--recipes", "ngp,planes,ngp", "--list") == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()] == ["ngp", "planes", "of"]


PLANS = sorted((REPOSITORY / "benchmarks" / "plans").glob("*.json"))


def test_two_processes_share_the_runs_and_take_turns(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, seeds = tmp_path / "rows.jsonl", []
    for share in ("0/2", "1/2"):
        asked = ("--seeds", 3, "--seconds", 0.1, "--looks", "0.1", "--share", share, "--turns", tmp_path / "lock")
        assert bench(monkeypatch, scene, *asked, "--out", out) == 0
        seeds.append([row["run"]["seed"] for row in written(out) if row["row"] == "run"])
    assert seeds == [[0, 2], [0, 2, 1]]
    capsys.readouterr()
    # Another process had the turn for so long that too little time is left.
    left = iter((100.0, 0.05, 0.05))
    monkeypatch.setattr(variants, "seconds_left", lambda _: next(left))
    assert bench(monkeypatch, scene, "--seconds", 0.2, "--out", tmp_path / "late.jsonl") == 1
    assert "failed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench(monkeypatch, scene, "--share", "half")


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_committed_plan_has_runs_whose_settings_exist(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    options = argparse.Namespace(
        plan=[plan], scenes=[], recipes="auto", policies="", seeds=1, seconds=1.0, looks="", views="all", hold_out=0,
        pixels=1, downscale=1, data=None, rehearse=False,
    )  # fmt: skip
    runs = variants.planned(options)
    assert runs
    box = large(load_scene(write_scene_of_eight(tmp_path / "scene")))
    open_space = replace(box, bounds=replace(box.bounds, levels=3), background=None)
    moving = replace(box, frames=tuple(replace(f, time=i / len(box.frames)) for i, f in enumerate(box.frames)))
    scenes = {"lego": box, "chair": box, "trex": moving}
    for run in runs:
        assert list(run.looks) == sorted(run.looks)
        assert max(run.looks) < run.seconds
        scene = scenes.get(run.scene, open_space)
        recipe = recipes.chosen_for(scene)[0] if run.recipe == "auto" else run.recipe
        changes = {**(policy_overrides(run.mining) if run.mining else {}), **run.set}
        with_techniques(replace_fields(recipes.build(recipe, scene, "cuda"), changes), run.techniques, scene)


def large(scene: Scene) -> Scene:
    """The scene as if its images were of 800x800 pixels."""
    return replace(scene, cameras=tuple(replace(camera, width=800, height=800) for camera in scene.cameras))


def test_plan_with_an_unknown_word_is_refused(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text('[{"scene": "disc", "recipee": "ngp"}]')
    with pytest.raises(SystemExit):
        bench(monkeypatch, "--plan", tmp_path / "plan.json")
    assert "recipee" in capsys.readouterr().err
