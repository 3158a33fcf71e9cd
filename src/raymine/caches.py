"""What raymine keeps on disk to be faster: image packs, the built-in scene, compiled kernels. All of it can be remade.

A process that reads a pack holds a shared lock on the file `use` in its folder, whose time is that of the last use. So
what is in use is never dropped, and the least recently used is dropped first.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raymine.errors import ConfigError, ResourceError, did_you_mean
from raymine.files import cache_path, file_lock

Kind = Literal["images", "scene", "kernels"]

_USE, _LOCK = "use", "lock"
_TRASH = ".dropped-"
_PATIENCE, _PAUSE = 10.0, 0.002
"""Seconds for which, and between which, a lock is asked for again."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Use:
    """The mark of a process that uses a folder of the cache. `close`, or the end of the process, takes it away."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @staticmethod
    def begin(folder: Path) -> Use | None:
        """Mark a folder as used now, before its files are opened.

        None where that is not possible: no such folder, one that was dropped meanwhile, a read-only cache, a system
        without `flock`.
        """
        try:
            import fcntl

            descriptor = os.open(folder / _USE, os.O_RDWR | os.O_CREAT, 0o644)
        except (ImportError, OSError):
            return None
        with contextlib.suppress(OSError):
            os.utime(folder / _USE)
        _try_for(_PATIENCE, lambda: fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB))
        use = Use(descriptor)
        if not _same_file(descriptor, folder / _USE):
            use.close()
            return None
        return use

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _try_for(seconds: float, lock: Callable[[], None]) -> None:
    """Call `lock` until it succeeds, at most for so long. A file system without locks is not asked again.

    A process that lists the cache holds a lock for some microseconds, one that drops a folder until it has renamed it.
    After `seconds` the process that holds it has probably been stopped. We go on without the lock then: files that are
    open can be read even if their folder is dropped.
    """
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while True:
            try:
                lock()
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    continue
            return


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


@dataclass(frozen=True)
class CacheEntry:
    """One thing in the cache. used: seconds since the epoch of its last use. in_use: whether a process uses it now.

    shared: whether other programs keep things there too. Such an entry is dropped only if it is named.
    """

    name: str
    kind: Kind
    path: Path
    bytes: int
    used: float
    in_use: bool = False
    shared: bool = False


def list_cache() -> list[CacheEntry]:
    """Everything in the cache, the most recently used first."""
    root = cache_path()
    found = [_entry(folder, "images") for folder in _folders(root / "banks")]
    found += [_entry(folder, "scene") for folder in _folders(root / "builtin")]
    return sorted([*found, *_kernels()], key=lambda entry: -entry.used)


def drop(name: str) -> list[CacheEntry]:
    """Drop the entry of this name, or with "all" everything that belongs to raymine alone. Returns what was dropped.

    `ConfigError` for an unknown name, `ResourceError` for an entry in use. With "all", those in use are kept.
    """
    entries = list_cache()
    if name == "all":
        return [entry for entry in entries if not entry.shared and _removed(entry)]
    named = [entry for entry in entries if entry.name == name]
    if not named:
        meant = did_you_mean(name, [entry.name for entry in entries])
        raise ConfigError(f"There is nothing named {name} in the cache.{meant}", hint="`raymine cache` lists it.")
    kept = [entry for entry in named if not _removed(entry)]
    if kept:
        raise ResourceError(f"{name} is in use and was kept.", hint="Wait for the process that uses it.")
    return named


def evict(budget: int) -> list[CacheEntry]:
    """Drop packs and scenes, the least recently used first, until they take at most `budget` bytes.

    Those in use are kept, even beyond the budget. Returns what was dropped.
    """
    entries = [entry for entry in list_cache() if entry.kind != "kernels"]
    total, dropped = sum(entry.bytes for entry in entries), []
    for entry in reversed(entries):
        if total > budget and _removed(entry):
            total -= entry.bytes
            dropped.append(entry)
    return dropped


def parse_size(text: str) -> int:
    """The bytes of a size such as `20GB`, `512M` or `1.5 GiB`, in powers of 1024. `ConfigError` if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"A size must look like 20GB or 512MB, got `{text[:40]}`.")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _folders(parent: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return []
    paths = [parent / name for name in names]
    for path in paths:
        if path.name.startswith(_TRASH):
            # A process was killed while it removed this.
            shutil.rmtree(path, ignore_errors=True)
    return [path for path in paths if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")]


def _entry(folder: Path, kind: Kind) -> CacheEntry:
    size, newest = _measure(folder)
    try:
        used = (folder / _USE).stat().st_mtime
    except OSError:
        used = newest
    return CacheEntry(folder.name, kind, folder, size, used, _in_use(folder))


def _measure(folder: Path, suffixes: tuple[str, ...] = ()) -> tuple[int, float]:
    """Bytes and newest time of the files below a folder. Files that vanish meanwhile do not count."""
    size, newest = 0, 0.0
    for place, _, names in os.walk(folder):
        for name in names:
            if not suffixes or name.endswith(suffixes):
                with contextlib.suppress(OSError):
                    state = os.lstat(os.path.join(place, name))
                    # A pack that is being written has holes, so blocks count and not lengths.
                    size += getattr(state, "st_blocks", -(-state.st_size // 512)) * 512
                    newest = max(newest, state.st_mtime)
    return size, newest


_NUMBA_FILES = (".nbi", ".nbc")


def _numba_folder() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR", "").strip()
    return Path(chosen) if chosen else Path(__file__).parent


def _triton_folder() -> Path:
    chosen = os.environ.get("TRITON_CACHE_DIR", "").strip()
    return Path(chosen) if chosen else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def _kernels() -> list[CacheEntry]:
    numba, triton = _numba_folder(), _triton_folder()
    kinds = (
        ("numba-kernels", numba, _NUMBA_FILES, numba != Path(__file__).parent),
        ("triton-kernels", triton, (), True),
    )
    found = [
        CacheEntry(name, "kernels", path, *_measure(path, suffixes), shared=s) for name, path, suffixes, s in kinds
    ]
    return [entry for entry in found if entry.bytes]


def _in_use(folder: Path) -> bool:
    with contextlib.ExitStack() as stack:
        return not _claimed(folder, stack)


def _claimed(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Take the folder for us alone until the stack is closed; False if another process packs or reads there."""
    from filelock import Timeout

    try:
        import fcntl
    except ImportError:
        fcntl = None  # type: ignore[assignment]
    try:
        if (folder / _LOCK).exists():
            stack.enter_context(file_lock(folder / _LOCK).acquire(timeout=0))
        if (folder / _USE).exists() and fcntl is not None:
            descriptor = os.open(folder / _USE, os.O_RDWR)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (Timeout, BlockingIOError):
        return False
    except OSError:
        # A cache of another user: whether it is used cannot be told.
        return os.access(folder, os.W_OK)
    return True


def _removed(entry: CacheEntry) -> bool:
    """Remove an entry; False if it is in use or may not be removed."""
    if entry.kind == "kernels":
        for place, _, names in os.walk(entry.path):
            for name in names:
                if entry.name == "triton-kernels" or name.endswith(_NUMBA_FILES):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(place, name))
        return True
    with contextlib.ExitStack() as stack:
        if not _claimed(entry.path, stack):
            return False
        # Renamed first, so that no process finds a part of it.
        away = entry.path.with_name(f"{_TRASH}{secrets.token_hex(4)}")
        try:
            os.rename(entry.path, away)
        except OSError:
            return False
    shutil.rmtree(away, ignore_errors=True)
    return True


def age(entry: CacheEntry) -> float:
    """Seconds since the last use."""
    return max(0.0, time.time() - entry.used)
