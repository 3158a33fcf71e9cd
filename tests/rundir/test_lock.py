"""The lock of a run folder: one owner, named in errors, freed by a kill, and not disturbed by readers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raymine.errors import ResourceError, RunError
from raymine.rundir import RunDir, RunLock, check_target, summarise_run
from raymine.rundir.lock import is_locked, owner_of, require_free
from support.runs import create_run

# Without raymine it starts quickly, and it checks that our lock is the one of the operating system.
HOLDER = """
import fcntl, json, os, sys
lock, owner = open(sys.argv[1], "w"), open(sys.argv[1] + "-owner", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
json.dump({"pid": os.getpid(), "since": "2030-01-01T00:00:00+00:00"}, owner)
owner.flush()
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


def test_locked_run_error_names_the_process_and_a_kill_frees_the_lock(tmp_path: Path) -> None:
    create_run(tmp_path / "run").close()
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
            assert "`out`" in caught.value.hint
        # Reading is always allowed.
        RunDir.open(tmp_path / "run").read_manifest()
        assert summarise_run(tmp_path / "run").status == "running"
        process.kill()
        process.wait()
        assert summarise_run(tmp_path / "run").status == "crashed"
        RunDir.open_locked(tmp_path / "run").close()


def test_acquire_waits_for_a_briefly_held_lock(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    glance = RunLock.acquire(lock)
    timer = threading.Timer(0.05, glance.release)
    timer.start()
    RunLock.acquire(lock).release()
    timer.join()


def test_release_keeps_the_lock_file_and_removes_the_owner_file(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path / ".lock")
    assert sorted(os.listdir(tmp_path)) == [".lock", ".lock-owner"]
    lock.release()
    lock.release()
    assert os.listdir(tmp_path) == [".lock"]
    assert owner_of(tmp_path / ".lock") is None


def test_is_locked_creates_no_files(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "gone" / ".lock")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("open", errno.EROFS, "no permission to write"),
        ("open", errno.EACCES, "no permission to write"),
        ("write", errno.ENOSPC, "no space left"),
    ],
)
def test_failing_disk_raises_resource_error_and_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ResourceError, match=f"Cannot lock the run: {words}"):
        RunLock.acquire(tmp_path / ".lock")
    monkeypatch.undo()
    assert not is_locked(tmp_path / ".lock")
    RunLock.acquire(tmp_path / ".lock").release()
