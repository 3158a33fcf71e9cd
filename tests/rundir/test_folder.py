"""Run folders: creation, locking, foreign folders, unique default names, and errors."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from raymine.errors import ResourceError, RunError
from raymine.rundir import RunDir, check_target
from raymine.rundir.folder import slug
from raymine.rundir.lock import is_locked, owner_of
from support.fake_training import manifest
from support.runs import create_run


def test_create_writes_config_and_manifest_and_holds_the_lock(tmp_path: Path) -> None:
    with create_run(tmp_path / "a" / "run") as run:
        assert is_locked(run.path / ".lock")
        owner = owner_of(run.path / ".lock")
        assert owner is not None
        assert owner.pid == os.getpid()
        assert run.read_config_json() == {"a": 1}
        assert run.read_manifest() == replace(manifest(), name="run")
    assert not is_locked(tmp_path / "a/run/.lock")


def test_check_target_accepts_new_and_empty_folders_and_rejects_others(tmp_path: Path) -> None:
    assert check_target(tmp_path / "new", resume=False) is False
    assert check_target(tmp_path / "new", resume=True) is False
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert check_target(tmp_path / "empty", resume=False) is False
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        check_target(tmp_path / "file", resume=False)
    create_run(tmp_path / "run").close()
    assert check_target(tmp_path / "run", resume=True) is True
    with pytest.raises(RunError, match="already holds a run") as caught:
        check_target(tmp_path / "run", resume=False)
    assert "resume=True" in caught.value.hint


@pytest.mark.parametrize("name", ["thesis.doc", ".git", ".notes"])
@pytest.mark.parametrize("resume", [False, True])
def test_foreign_folder_raises_and_stays_untouched(tmp_path: Path, name: str, resume: bool) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("precious")
    with pytest.raises(RunError, match="is not a raymine run; it is left untouched"):
        check_target(folder, resume=resume)
    assert os.listdir(folder) == [name]


def test_remains_of_a_run_killed_during_creation_are_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", "config.json", ".manifest.json.9-ab.raymine-tmp"):
        (folder / name).write_text("")
    assert check_target(folder, resume=True) is False
    create_run(folder).close()
    assert RunDir.open(folder).read_config_json() == {"a": 1}


def test_second_creation_of_a_folder_raises(tmp_path: Path) -> None:
    create_run(tmp_path / "run").close()
    # As if the second process had checked its target before the first one had finished.
    with pytest.raises(RunError, match="already holds a run"):
        create_run(tmp_path / "run")
    assert not is_locked(tmp_path / "run/.lock")


def test_default_names_never_collide(tmp_path: Path) -> None:
    made: list[Path] = []

    def make() -> None:
        made.extend(create_run(None, root=tmp_path, stem="lego-ngp").path for _ in range(5))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(p.name for p in made) == sorted(f"lego-ngp-{n}" for n in range(1, 21))
    (tmp_path / "lego-ngp-x").mkdir()
    (tmp_path / "lego-ngp-40").mkdir()
    assert create_run(None, root=tmp_path, stem="lego-ngp").path.name == "lego-ngp-41"


def test_unwritable_folder_raises_resource_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    for path in (tmp_path / "run", None):
        with pytest.raises(ResourceError, match="Cannot create the run folder: no permission") as caught:
            create_run(path, root=tmp_path / "runs")
        assert "`out`" in caught.value.hint
        assert caught.value.exit_code == 5


def test_opening_a_missing_or_damaged_run_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run folder"):
        RunDir.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run folder: it has no manifest\.json"):
        RunDir.open(tmp_path)
    create_run(tmp_path / "run").close()
    (tmp_path / "run/config.json").unlink()
    with pytest.raises(RunError, match=r"config\.json is missing"):
        RunDir.open(tmp_path / "run").read_config_json()
    (tmp_path / "run/manifest.json").write_text('{"name": ')
    with pytest.raises(RunError, match=r"manifest\.json is cut short"):
        RunDir.open(tmp_path / "run").read_manifest()
    (tmp_path / "run/manifest.json").write_text("[]")
    with pytest.raises(RunError, match=r"manifest\.json is damaged: .* must be an object") as caught:
        RunDir.open(tmp_path / "run").read_manifest()
    assert "Restore it from a copy" in caught.value.hint


def test_unreadable_config_error_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    with create_run(tmp_path / "run") as run, pytest.raises(RunError, match=r"a: no such setting") as caught:
        run.read_config()
    assert "raymine 0" in caught.value.hint


def test_slug_replaces_special_characters() -> None:
    assert slug("my scene (2)/x") == "my-scene-2-x"
    assert slug("...") == "scene"
