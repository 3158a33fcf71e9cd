"""The order of tasks, the stages that are added, and what a dry run says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raymine.cli import main
from raymine.files import JSON
from raymine.pipeline import Pipeline, SceneSpec, plan
from raymine.pipeline.plan import Task, code_version, explain
from raymine.pipeline.stages import OwnStage, Result
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


def told_of(name: str, tasks: list[Task], code: str) -> tuple[str, str]:
    """What a dry run says of a stage: whether it runs, and why."""
    return next((verdict, why) for task, verdict, why in explain(tasks, code) if task.name == name)


def test_dry_run_says_why_a_stage_of_ones_own_runs(tmp_path: Path) -> None:
    write_scene_of_eight(tmp_path / "a")
    (tmp_path / "sheet.py").write_text("1")

    def tasks_with(*command: str) -> list[Task]:
        own = OwnStage("sheet", command, ("check",), (tmp_path / "sheet.py",), tmp_path)
        return plan(pipeline(tmp_path, "check", "sheet", own=(own,)))

    def finish(task: Task, results: dict[str, Result], printed: JSON = None) -> Result:
        return task.finish(results, task.parts(results, "c"), printed, 1.0).result

    tasks = tasks_with("x")
    assert told_of("sheet", tasks, "c") == ("run", "check must run first")
    checked = finish(tasks[0], {}, {"warnings": []})
    assert told_of("sheet", tasks, "c") == ("run", "it has not been finished yet")
    finish(tasks[1], {"check": checked})
    assert told_of("sheet", tasks, "c") == ("skip", "nothing changed")
    assert told_of("sheet", tasks_with("y"), "c") == ("run", "its options changed")
    (tmp_path / "sheet.py").write_text("22")
    assert told_of("sheet", tasks, "c") == ("run", "its inputs changed")
    finish(tasks[1], {"check": checked})
    # Another scene gives the same warnings, and the result of `check` is its warnings.
    (tmp_path / "a/new.png").write_text("x")
    assert told_of("sheet", tasks, "c") == ("run", "check must run first")
    assert finish(tasks[0], {}, {"warnings": []}) == checked
    assert told_of("sheet", tasks, "c") == ("run", "its inputs changed")


def test_dry_run_names_a_file_that_was_lost(tmp_path: Path) -> None:
    write_scene_of_eight(tmp_path / "a")
    spec = pipeline(tmp_path, "export")
    pack, train, export = plan(spec)
    results: dict[str, Result] = {"pack": pack.finish({}, pack.parts({}, "c"), {}, 1.0).result}
    run = train.site(results, train.parts(results, "c")).run
    (run / "checkpoints").mkdir(parents=True)
    saved = run / "checkpoints/step-00000003.json"
    saved.write_text(json.dumps({"tensors": {"sha256": "d"}}))
    results["train"] = train.finish(results, train.parts(results, "c"), {}, 1.0).result
    assert told_of("train", [pack, train, export], "c") == ("skip", "nothing changed")
    saved.unlink()
    assert told_of("train", [pack, train, export], "c") == ("run", f"{saved} was changed or removed")
    assert told_of("export", [pack, train, export], "c") == ("run", "train must run first")
