"""The cache: sizes, last use, budgets, and packs in use."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raymine import caches
from raymine.caches import Use, drop, evict, list_cache, parse_size
from raymine.cli import main
from raymine.contracts import Scene
from raymine.errors import ConfigError, ResourceError
from raymine.scenes.bank import open_bank


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "_kernels", list)
    return tmp_path / "cache"


def pack(name: str, size: int, used: float) -> Path:
    folder = Path(os.environ["RAYMINE_CACHE"]) / "banks" / name
    folder.mkdir(parents=True)
    (folder / "pack-1.u8").write_bytes(b"x" * size)
    (folder / "use").write_text("")
    os.utime(folder / "use", (used, used))
    return folder


def names() -> list[str]:
    return [entry.name for entry in list_cache()]


def test_least_recently_used_packs_are_dropped_until_the_budget_is_kept() -> None:
    for name, used in (("old", 1000), ("new", 3000), ("middle", 2000)):
        pack(name, 1 << 16, used)
    assert names() == ["new", "middle", "old"]
    assert [entry.name for entry in evict(150_000)] == ["old"]
    assert evict(150_000) == []
    assert [entry.name for entry in evict(0)] == ["middle", "new"]
    assert names() == []


def test_pack_in_use_is_never_dropped() -> None:
    folder = pack("busy", 10, 1000)
    pack("idle", 10, 2000)
    code = "import sys, time; from pathlib import Path; from raymine.caches import Use\n"
    code += "use = Use.begin(Path(sys.argv[1])); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert {entry.name: entry.in_use for entry in list_cache()} == {"busy": True, "idle": False}
    assert [entry.name for entry in evict(0)] == ["idle"]
    assert drop("all") == []
    with pytest.raises(ResourceError, match="busy is in use and was kept"):
        drop("busy")
    process.kill()
    process.wait()
    process.stdout.close()
    assert [entry.name for entry in drop("busy")] == ["busy"], "a killed process uses nothing"


def held(folder: Path) -> int:
    """A descriptor with the lock that a process holds while it looks whether the folder is used."""
    descriptor = os.open(folder / "use", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def after(seconds: float, work: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer


def test_use_begins_while_another_process_lists() -> None:
    folder = pack("busy", 10, 1000)
    lister = held(folder)
    timer = after(0.3, lambda: os.close(lister))
    use = Use.begin(folder)
    timer.join()
    assert use is not None
    assert [entry.in_use for entry in list_cache()] == [True]
    assert evict(0) == []
    use.close()
    assert [entry.name for entry in evict(0)] == ["busy"]


def test_use_is_never_lost_to_a_process_that_lists_without_a_pause() -> None:
    folder = pack("busy", 10, 1000)
    code = "from raymine.caches import list_cache\nprint(1, flush=True)\nwhile True: list_cache()"
    lister = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert lister.stdout is not None
    lister.stdout.readline()
    try:
        for _ in range(300):
            use = Use.begin(folder)
            assert use is not None
            assert evict(0) == []
            use.close()
    finally:
        lister.kill()
        lister.wait()
        lister.stdout.close()


def test_a_stopped_process_does_not_hold_up_the_use_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_PATIENCE", 0.1)
    folder = pack("busy", 10, 1000)
    stopped, began = held(folder), time.monotonic()
    use = Use.begin(folder)
    assert use is not None
    assert time.monotonic() - began < 5
    use.close()
    os.close(stopped)


def test_pack_that_is_dropped_while_it_is_opened_is_made_again(photos: Scene) -> None:
    open_bank(photos, range(3)).close()
    (entry,) = list_cache()
    dropper = held(entry.path)

    def drop_it() -> None:
        entry.path.rename(entry.path.with_name(".dropped-1"))
        os.close(dropper)

    timer = after(0.3, drop_it)
    with open_bank(photos, range(3)) as bank:
        timer.join()
        assert [found.in_use for found in list_cache()] == [True]
        assert evict(0) == []
        assert len(bank) == 3


def test_open_bank_marks_its_pack_as_used(photos: Scene) -> None:
    with open_bank(photos, range(3)) as bank:
        (entry,) = list_cache()
        assert (entry.kind, entry.in_use) == ("images", True)
        assert entry.bytes >= bank.nbytes
        assert caches.age(entry) < 60
    (entry,) = list_cache()
    assert not entry.in_use
    os.utime(entry.path / "use", (1, 1))
    open_bank(photos, range(3)).close()
    assert caches.age(list_cache()[0]) < 60
    assert [dropped.name for dropped in drop("all")] == [entry.name]
    open_bank(photos, range(3)).close()
    assert names() == [entry.name], "what was dropped is made again"


def test_unknown_names_and_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert [parse_size(text) for text in ("20GB", "1.5 MiB", "512m", "7")] == [20 << 30, 3 << 19, 512 << 20, 7]
    for text in ("x", "-1GB", "20 XB", ""):
        with pytest.raises(ConfigError, match="must look like 20GB"):
            parse_size(text)
    pack("lego-1", 10, 1000)
    assert main(["cache", "--drop", "lego1"]) == 2
    assert "nothing named lego1 in the cache. Did you mean `lego-1`?" in capsys.readouterr().err
    assert main(["cache", "--drop", "all", "--budget", "1GB"]) == 2


def test_cache_command_lists_and_drops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert "Nothing is cached." in capsys.readouterr().err
    pack("lego-1", 10, 1000)
    assert main(["cache", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["entries"]] == ["lego-1"]
    assert main(["cache"]) == 0
    assert "lego-1" in capsys.readouterr().out
    assert main(["cache", "--budget", "0", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [entry["name"] for entry in json.loads(out)["dropped"]] == ["lego-1"]
    assert "Dropped 1 entry" in err


def test_compiled_kernels_are_listed_and_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    for folder, name in (("numba", "a.nbc"), ("numba", "keep.txt"), ("triton", "b.cubin")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("x")
    assert sorted(names()) == ["numba-kernels", "triton-kernels"]
    assert drop("all") == [], "both folders are shared with other programs"
    assert [entry.name for entry in drop("numba-kernels")] == ["numba-kernels"]
    assert [path.name for path in (tmp_path / "numba").iterdir()] == ["keep.txt"]
    assert Use.begin(tmp_path / "nowhere") is None
