"""Run folders: one owner, foreign folders untouched, names without a race, a true index."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fake_training import manifest
from raymine import checkpoint
from raymine.errors import ResourceError, RunError
from raymine.rundir import FileLock, RunDir, check_target, describe_environment, list_runs, summarise
from raymine.rundir.folder import slug
from raymine.rundir.lock import is_locked, owner_of, require_free

# Written without raymine, so that it starts at once and checks our lock against the system's own.
HOLDER = """
import fcntl, json, os, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
json.dump({"pid": os.getpid(), "since": "2030-01-01T00:00:00+00:00"}, file)
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(lock: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def create(path: Path | None, root: Path = Path(), stem: str = "x") -> RunDir:
    return RunDir.create(path, root=root, stem=stem, config={"a": 1}, manifest=manifest())


def test_create_writes_config_and_manifest_and_holds_the_lock(tmp_path: Path) -> None:
    with create(tmp_path / "a" / "run") as run:
        assert is_locked(run.path / ".lock")
        owner = owner_of(run.path / ".lock")
        assert owner is not None
        assert owner.pid == os.getpid()
        assert run.read_config_json() == {"a": 1}
        assert run.read_manifest() == replace(manifest(), name="run")
    assert not is_locked(tmp_path / "a/run/.lock")


def test_a_run_in_use_names_its_process_and_is_free_after_a_kill(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with held_by_another_process(tmp_path / "run/.lock") as process:
        for attempt in (
            lambda: RunDir.open_locked(tmp_path / "run"),
            lambda: check_target(tmp_path / "run", resume=True),
            lambda: check_target(tmp_path / "run", resume=False),
            lambda: require_free(tmp_path / "run/.lock"),
        ):
            with pytest.raises(RunError, match=f"in use by process {process.pid}") as caught:
                attempt()
            assert f"kill {process.pid}" in caught.value.hint
            assert "--out" in caught.value.hint
        # Looking is always allowed.
        RunDir.open(tmp_path / "run").read_manifest()
        assert summarise(tmp_path / "run").status == "running"
        process.kill()
        process.wait()
        assert summarise(tmp_path / "run").status == "crashed"
        RunDir.open_locked(tmp_path / "run").close()


def test_looking_at_a_lock_for_an_instant_does_not_turn_an_owner_away(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    glance = FileLock.acquire(lock)
    timer = threading.Timer(0.05, glance.release)
    timer.start()
    FileLock.acquire(lock).release()
    timer.join()


def test_targets(tmp_path: Path) -> None:
    assert check_target(tmp_path / "new", resume=False) is False
    assert check_target(tmp_path / "new", resume=True) is False
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert check_target(tmp_path / "empty", resume=False) is False
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        check_target(tmp_path / "file", resume=False)
    create(tmp_path / "run").close()
    assert check_target(tmp_path / "run", resume=True) is True
    with pytest.raises(RunError, match="already holds a run") as caught:
        check_target(tmp_path / "run", resume=False)
    assert "--resume" in caught.value.hint


@pytest.mark.parametrize("name", ["thesis.doc", ".git", ".notes"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_foreign_folder_is_refused_and_untouched(tmp_path: Path, name: str, resume: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("precious")
    with pytest.raises(RunError, match="is not a raymine run; it is left untouched"):
        check_target(folder, resume=resume)
    assert os.listdir(folder) == [name]


def test_the_remains_of_a_run_killed_at_birth_are_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", "config.json", ".manifest.json.9-ab.raymine-tmp"):
        (folder / name).write_text("")
    assert check_target(folder, resume=True) is False
    create(folder).close()
    assert RunDir.open(folder).read_config_json() == {"a": 1}


def test_two_creators_of_one_folder_do_not_share_it(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    # The second one checked its target before the first had finished.
    with pytest.raises(RunError, match="already holds a run"):
        create(tmp_path / "run")
    assert not is_locked(tmp_path / "run/.lock")


def test_default_names_never_collide(tmp_path: Path) -> None:
    made: list[Path] = []

    def make() -> None:
        made.extend(create(None, root=tmp_path, stem="lego-ngp").path for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(p.name for p in made) == sorted(f"lego-ngp-{n}" for n in range(1, 21))
    (tmp_path / "lego-ngp-x").mkdir()
    (tmp_path / "lego-ngp-40").mkdir()
    assert create(None, root=tmp_path, stem="lego-ngp").path.name == "lego-ngp-41"


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    for path in (tmp_path / "run", None):
        with pytest.raises(ResourceError, match="Cannot create the run folder: no permission") as caught:
            create(path, root=tmp_path / "runs")
        assert "--out" in caught.value.hint
        assert caught.value.exit_code == 5


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run folder"):
        RunDir.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run folder: it has no manifest\.json"):
        RunDir.open(tmp_path)
    create(tmp_path / "run").close()
    (tmp_path / "run/config.json").unlink()
    with pytest.raises(RunError, match=r"config\.json is missing"):
        RunDir.open(tmp_path / "run").read_config_json()
    (tmp_path / "run/manifest.json").write_text('{"name": ')
    with pytest.raises(RunError, match=r"manifest\.json cannot be read"):
        RunDir.open(tmp_path / "run").read_manifest()


def test_a_config_of_another_version_says_which(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run, pytest.raises(RunError, match=r"a: no such setting") as caught:
        run.read_config()
    assert "raymine 0" in caught.value.hint


def test_the_index_tells_states_apart(tmp_path: Path) -> None:
    statuses = {"done": "finished", "halted": "stopped", "dead": "failed"}
    for number, (name, status) in enumerate(statuses.items()):
        with create(tmp_path / name) as run:
            run.write_manifest(
                manifest(
                    status=status, step=7, train_psnr=20.0, elapsed=3.5, started=f"2030-01-0{number + 2}", error="why"
                )
            )
    with create(tmp_path / "group/alive") as alive:
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


def test_index_tells_psnr_under_the_names_of_the_manifest(tmp_path: Path) -> None:
    names = ("train_psnr", "test_psnr", "held_out_psnr", "best_step", "best_held_out_psnr")
    values = (20.0, 31.5, 30.5, 12, 30.75)
    with create(tmp_path / "run") as run:
        run.write_manifest(manifest(status="finished", **dict(zip(names, values, strict=True))))
    found = summarise(tmp_path / "run")
    assert tuple(getattr(found, name) for name in names) == values


def test_manifest_of_an_older_version_is_read(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.write_manifest(manifest(status="finished", step=7, elapsed=3.5))
    path = tmp_path / "run/manifest.json"
    new = ("train_psnr", "test_psnr", "held_out_psnr", "best_step", "best_held_out_psnr")
    data = {key: value for key, value in json.loads(path.read_text()).items() if key not in new}
    path.write_text(json.dumps({**data, "psnr": 20.5, "best_psnr": 31.5}))
    found = RunDir.open(tmp_path / "run").read_manifest()
    # The best of several looks at test views is no figure of the model that was written.
    assert (found.step, found.train_psnr, found.test_psnr, found.best_held_out_psnr) == (7, 20.5, None, None)
    assert summarise(tmp_path / "run").status == "finished"
    # A manifest of a run that never trained has both keys and no values.
    path.write_text(json.dumps({**data, "psnr": None, "best_psnr": None}))
    assert RunDir.open(tmp_path / "run").read_manifest().train_psnr is None


def test_the_environment_names_versions_and_device() -> None:
    found = describe_environment(torch.device("cpu"))
    assert found.packages["torch"] == torch.__version__.split("+")[0] or found.packages["torch"] == torch.__version__
    assert found.device.startswith("cpu: ")
    assert found.threads == torch.get_num_threads()
    assert found.commit is None or len(found.commit.removesuffix("-dirty")) == 40
    json.dumps(found.packages)


def test_slugs() -> None:
    assert slug("my scene (2)/x") == "my-scene-2-x"
    assert slug("...") == "scene"
