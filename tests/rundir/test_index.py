"""The list of runs: the status and the PSNR values of each run."""

from __future__ import annotations

from pathlib import Path

from raymine import checkpoint
from raymine.rundir import list_runs, summarise_run
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
