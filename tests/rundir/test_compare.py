"""Two runs side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from raymine.rundir import Environment, RunDir
from raymine.rundir.compare import compare_runs, flattened, origins
from support.fake_training import manifest


def make(path: Path, config: dict[str, object], **changes: object) -> Path:
    with RunDir.create(path, root=path.parent, stem="x", config=config, manifest=manifest(**changes)) as run:
        run.write_images({"a.png": "1", "b.png": str(changes.get("seed", 0))})
    return path


def test_settings_that_differ_come_first_and_what_changed_is_named(tmp_path: Path) -> None:
    here = Environment("1", "c0", "3.11", "linux", {"torch": "2.6"}, "cpu", 2)
    train = {"batch": {"samples": 256}, "loss": [{"type": "a", "weight": 1.0}]}
    first = make(tmp_path / "a", {"schema": 2, "seed": 0, "train": train}, environment=here)
    there = replace(here, packages={"torch": "2.7"}, commit="c1")
    other = {"batch": {"samples": 512}, "loss": [{"type": "a", "weight": 1.0}]}
    second = make(tmp_path / "b", {"schema": 3, "seed": 7, "train": other}, environment=there, seed=7)
    found = compare_runs(first, second)
    assert [(each.what, each.first, each.second) for each in found.settings if not each.same] == [
        ("seed", 0, 7),
        ("train.batch.samples", 256, 512),
    ]
    assert [each.same for each in found.settings] == [False, False, True, True]
    assert {each.what for each in found.origins} == {"code (commit)", "package torch", "seed", "image b.png"}


def test_changed_source_files_are_named_where_both_runs_recorded_them(tmp_path: Path) -> None:
    here = Environment("1", "c0-dirty", "3.11", "linux", {}, "cpu", 2, source="aa")
    paths = {}
    for name, source in (("a", "aa"), ("b", "bb"), ("old", None)):
        paths[name] = make(tmp_path / name, {}, environment=replace(here, source=source))
    assert [each.what for each in origins(paths["a"], paths["b"])] == ["code (source files)"]
    assert origins(paths["a"], paths["old"]) == ()


def test_many_changed_images_are_counted(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", {}), make(tmp_path / "b", {})
    for path, digest in ((first, "1"), (second, "2")):
        (path / "images.json").write_text(json.dumps({f"{i}.png": digest for i in range(9)}))
    assert [each.what for each in compare_runs(first, second).origins] == ["9 images, 0.png first"]


def test_a_folder_without_a_config_compares_as_empty(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {"seed": 0})
    second = make(tmp_path / "b", {"seed": 0})
    (second / "config.json").write_text("{")
    (second / "manifest.json").write_text(json.dumps([]))
    found = compare_runs(first, second)
    assert found.second.status == "unreadable"
    assert [(each.what, each.second) for each in found.settings] == [("seed", None)]


def test_flattened_names_leaves_with_dots() -> None:
    assert flattened({"a": {"b": [1, 2]}, "c": [{"d": 1}], "e": {}}) == {"a.b": [1, 2], "c[0].d": 1, "e": {}}
