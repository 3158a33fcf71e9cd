"""The list of runs: the status and the PSNR values of each run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from raymine import checkpoint
from raymine.errors import RunError
from raymine.rundir import RunDir, index, list_runs, register, summarise_run
from raymine.rundir.index import find_run, list_all, rebuild
from raymine.rundir.store import IndexFile, Row
from support.fake_training import manifest
from support.runs import create_run


def test_list_runs_reports_the_status_of_every_run(tmp_path: Path) -> None:
    statuses = {"done": "finished", "halted": "stopped", "dead": "failed"}
    for number, (name, status) in enumerate(statuses.items()):
        with create_run(tmp_path / name) as run:
            run.write_manifest(
                manifest(
                    status=status, step=7, train_psnr=20.0, elapsed=3.5, started=f"2030-01-0{number + 2}", error="why"
                )
            )
    with create_run(tmp_path / "group/alive") as alive:
        checkpoint.save(alive.checkpoints, 120, {}, {}, {})
        found = {run.name: run for run in list_runs(tmp_path)}
        assert found["alive"].status == "running"
        assert found["alive"].step == 120
    assert {name: found[name].status for name in statuses} == statuses
    assert (found["done"].train_psnr, found["done"].elapsed, found["done"].step) == (20.0, 3.5, 7)
    assert found["dead"].problem == "why"
    assert [run.name for run in list_runs(tmp_path)] == ["alive", "done", "halted", "dead"]
    assert {run.name: run.status for run in list_runs(tmp_path)}["alive"] == "crashed"
    (tmp_path / "done/manifest.json").write_text("{}")
    broken = {run.name: run for run in list_runs(tmp_path)}["done"]
    assert broken.status == "unreadable"
    assert "missing" in broken.problem
    assert list_runs(tmp_path / "nowhere") == []


def test_summary_has_the_psnr_fields_of_the_manifest(tmp_path: Path) -> None:
    names = ("train_psnr", "test_psnr", "held_out_psnr", "best_step", "best_held_out_psnr")
    values = (20.0, 31.5, 30.5, 12, 30.75)
    with create_run(tmp_path / "run") as run:
        run.write_manifest(manifest(status="finished", **dict(zip(names, values, strict=True))))
    found = summarise_run(tmp_path / "run")
    assert tuple(getattr(found, name) for name in names) == values


def finished(path: Path, **changes: object) -> Path:
    with create_run(path) as run:
        run.write_manifest(manifest(**{"status": "finished", **changes}))
    return path


def test_registered_run_is_listed_from_the_index_until_its_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, run = IndexFile(tmp_path / "cache"), finished(tmp_path / "runs/a", step=3)
    assert register(run, own) == ""
    read: list[Path] = []
    monkeypatch.setattr(index, "summarise_run", lambda path: read.append(path) or summarise_run(path))
    assert [found.step for found in list_runs(tmp_path / "runs", own)] == [3]
    assert read == []
    with RunDir.open_locked(run) as changed:
        changed.write_manifest(manifest(status="finished", step=4))
    assert [found.step for found in list_runs(tmp_path / "runs", own)] == [4]
    assert read == [run]


def test_deleted_and_damaged_index_is_filled_again_from_the_folders(tmp_path: Path) -> None:
    own = IndexFile(tmp_path / "cache")
    for name in ("a", "b"):
        assert register(finished(tmp_path / "runs" / name), own) == ""
    own.path.unlink()
    assert [run.name for run in list_all(own)] == ["a", "b"]
    own.path.write_bytes(b"\0" * 5000)
    assert [run.name for run in list_all(own)] == ["a", "b"]
    assert len(own.rows()) == 2
    shutil.rmtree(tmp_path / "runs/a")
    assert [run.name for run in list_all(own)] == ["b"]
    assert len(own.rows()) == 1


def test_rebuild_reads_every_folder_again(tmp_path: Path) -> None:
    own = IndexFile(tmp_path / "cache")
    finished(tmp_path / "runs/a")
    own.put([Row("/nowhere", "s", "{}")])
    assert [run.name for run in rebuild([tmp_path / "runs"], own)] == ["a"]
    assert [row.path for row in own.rows()] == [str(tmp_path / "runs/a")]


def test_index_that_cannot_be_written_is_reported_and_not_needed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    own, run = IndexFile(tmp_path / "file"), finished(tmp_path / "runs/a")
    assert "could not be written" in register(run, own)
    assert [found.name for found in list_runs(tmp_path / "runs", own)] == ["a"]
    (tmp_path / "cache/runs.sqlite").mkdir(parents=True)
    for unusable in (own, IndexFile(tmp_path / "cache", patience=0.1)):
        with pytest.raises(RunError, match=r"The run index .*runs.sqlite cannot be written: .*\."):
            rebuild([tmp_path / "runs"], unusable)


def test_find_run_takes_a_path_a_name_in_the_root_or_a_unique_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    first, second = finished(tmp_path / "x/a"), finished(tmp_path / "y/b")
    for run in (
        first,
        second,
        finished(tmp_path / "z/b2"),
        finished(tmp_path / "x/twin"),
        finished(tmp_path / "y/twin"),
    ):
        register(run)
    assert find_run(str(first), tmp_path) == first
    assert find_run("a", tmp_path / "x") == first
    assert find_run("b", tmp_path / "x") == second
    with pytest.raises(RunError, match="2 runs have the name twin"):
        find_run("twin", tmp_path)
    with pytest.raises(RunError, match=r"no run b22\. Did you mean `b2`"):
        find_run("b22", tmp_path)


def test_evaluation_counts_until_a_later_checkpoint_is_saved(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", test_psnr=20.0)
    assert (summarise_run(run).psnr, summarise_run(run).protocol) == (20.0, "quick")
    checkpoint.save(run / "checkpoints", 1, {}, {}, {})
    (run / "eval").mkdir()
    (run / "eval/metrics.json").write_text(json.dumps({"psnr": 30.0, "ssim": 0.5, "protocol": {"digest": "abc"}}))
    found = summarise_run(run)
    assert (found.psnr, found.eval_ssim, found.protocol) == (30.0, 0.5, "abc")
    (run / "eval/metrics.json").write_text(json.dumps({"psnr": 30.0}))
    assert summarise_run(run).protocol == "unrecorded"
    os.utime(run / "eval/metrics.json", (1, 1))
    assert summarise_run(run).eval_psnr is None
