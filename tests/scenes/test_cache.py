"""The cache folder, its lock, and errors of the disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raymine.errors import ResourceError
from raymine.scenes._cache import cache_root, locked, storage_error


def test_cache_root_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "deep" / "cache"))
    assert cache_root() == tmp_path / "deep" / "cache"
    assert cache_root().is_dir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYMINE_CACHE", "~/kept")
    assert cache_root() == tmp_path / "home" / "kept"
    monkeypatch.delenv("RAYMINE_CACHE")
    assert cache_root() == tmp_path / "home" / ".cache" / "raymine"
    assert list(cache_root().iterdir()) == []


def test_unwritable_cache_root_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="cannot be written") as caught:
        cache_root()
    assert str(tmp_path / "file") in caught.value.message
    assert "Set RAYMINE_CACHE" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "no space left on the disk"), (errno.EROFS, "no permission"), (errno.EIO, os.strerror(errno.EIO))],
)
def test_storage_error_describes_the_os_error(number: int, words: str) -> None:
    error = storage_error(OSError(number, os.strerror(number)), Path("/there"), "the thing")
    assert error.message.startswith("Cannot write the thing: ")
    assert str(Path("/there")) in error.message
    assert words in error.message
    assert "Set RAYMINE_CACHE" in error.hint


def test_lock_excludes_others_and_notifies_the_waiting_one(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "lock", lambda: order.append("waits")):
            order.append("second")

    with locked(tmp_path / "lock", lambda: order.append("never")):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.6)
        order.append("first")
    thread.join(5.0)
    assert order == ["waits", "first", "second"]


def test_lock_is_free_after_its_holder_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from raymine.scenes._cache import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    holder.kill()
    holder.communicate(timeout=10)
    with locked(tmp_path / "lock", lambda: pytest.fail("still locked")):
        pass
