"""The order of tasks, the stages that are added, and what a dry run says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raymine.cli import main
from raymine.pipeline import Pipeline, SceneSpec, plan
from raymine.pipeline.plan import code_version, explain
from support.disc_scene import write_scene_of_eight


def pipeline(folder: Path, *stages: str, **changes: object) -> Pipeline:
    scene = SceneSpec("a", str(folder / "a"))
    return replace(Pipeline(folder / "p.toml", folder / "o", (scene,), stages), **changes)  # type: ignore[arg-type]


def test_stages_that_are_needed_are_added_in_the_order_of_the_table(tmp_path: Path) -> None:
    assert [task.name for task in plan(pipeline(tmp_path, "verify", "check"))] == [
        "check",
        "pack",
        "train",
        "eval",
        "verify",
    ]
    train = next(task for task in plan(pipeline(tmp_path, "check", "train")) if task.name == "train")
    assert set(train.needs) == {"pack", "check"}


def test_scene_of_photos_begins_with_ingest(tmp_path: Path) -> None:
    photos = SceneSpec("p", None, tmp_path)
    tasks = plan(pipeline(tmp_path, "train", scenes=(photos,)))
    assert [task.name for task in tasks] == ["ingest", "pack", "train"]
    assert tasks[1].needs == ("ingest",)
    assert [task.name for task in plan(pipeline(tmp_path, "ingest", "train"))] == ["pack", "train"]


def test_dry_run_says_what_would_run_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scene_of_eight(Path("a"))
    spec = pipeline(tmp_path, "eval")
    tasks = plan(spec)
    code = code_version("source")
    told = [(task.name, verdict, why) for task, verdict, why in explain(tasks, code)]
    assert told == [
        ("pack", "run", "it has not been finished yet"),
        ("train", "run", "pack must run first"),
        ("eval", "run", "train must run first"),
    ]
    printed = {"scene_digest": "s", "train": "t", "test": "u"}
    tasks[0].finish({}, tasks[0].parts({}, code), printed, 1.0)
    assert explain(tasks, code)[0][1:] == ("skip", "nothing changed")
    assert explain(tasks, "other")[0][1:] == ("run", "its code changed")
    (tmp_path / "a/new.png").write_text("x")
    assert explain(tasks, code)[0][1:] == ("run", "its inputs changed")
    tasks[0].record_file.write_text("{")
    assert explain(tasks, code)[0][1:] == ("run", "it has not been finished yet")
    Path("p.toml").write_text('[[scene]]\npath = "a"\n')
    assert main(["pipeline", "p.toml", "--dry-run", "--json"]) == 0
    assert [row["stage"] for row in json.loads(capsys.readouterr().out)] == ["check", "pack", "train", "eval"]
    assert not Path("results").exists()
