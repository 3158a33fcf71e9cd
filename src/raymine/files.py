"""Atomic file writes, one reader for JSON files, file locks, and error messages for a full disk or missing permissions.

A file is written next to its target under a temporary name, flushed to disk and renamed over the target. So a reader
finds the old content or the new content, never a part of it, even if the writer was killed. Imports only `errors`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raymine.errors import ResourceError, has_option, option

if TYPE_CHECKING:
    from filelock import BaseFileLock

# What `json.dumps` can write. Recursive aliases are not worth their error messages here.
JSON = Any

_TEMP_SUFFIX = ".raymine-tmp"

_STALE_SECONDS = 86400.0
"""Age of a staging folder that no running process can still need."""


def resource_error(error: OSError, what: str, path: Path, hint: str | None = None) -> ResourceError:
    """A `ResourceError` for an `OSError` that stopped `what` (a phrase such as "write the checkpoint").

    `hint` is the remedy. None suggests another folder for `out`.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        other = f" or choose another disk with {option('out')}" if has_option("out") else ""
        remedy = f"Free some space{other}; nothing that was there before is lost."
        return ResourceError(f"Cannot {what}: no space left on the disk of {path}.", hint=hint or remedy)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Change the permissions of the folder."
        if has_option("out"):
            remedy = f"Choose a folder you may write to with {option('out')}, or change its permissions."
        return ResourceError(f"Cannot {what}: no permission to write {path} ({error.strerror}).", hint=hint or remedy)
    if error.errno in (errno.ENOLCK, errno.ENOSYS):
        by = f", with {option('out')}" if has_option("out") else ""
        remedy = f"Choose a folder on a local disk, or on a mount with locks such as NFS 4{by}."
        return ResourceError(f"Cannot {what}: the file system of {path} has no file locks.", hint=hint or remedy)
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
        fault = obstacle(path, folder=False)
        if fault:
            return ResourceError(f"Cannot {what}: {path} {fault}.", hint=hint or "Choose another place.")
    return ResourceError(
        f"Cannot {what}: {path}: {error.strerror or error}.",
        hint=hint or "Check the path and its disk, or give another one.",
    )


def expanded(path: str | Path) -> Path:
    """`path` with `~` and `~user` replaced by the home folder; as it stands if there is no such user or home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def cache_path() -> Path:
    """The path of the cache folder: `$RAYMINE_CACHE`, else `~/.cache/raymine`. It may not exist."""
    chosen = os.environ.get("RAYMINE_CACHE", "").strip() or "~/.cache/raymine"
    return expanded(chosen).absolute()


def obstacle(path: Path, *, folder: bool) -> str | None:
    """Why `path` cannot become a folder, or with `folder` False a file; None if nothing is in the way.

    The text completes a sentence that begins with the path: "is a file", "lies in x.txt, which is a file", "is a link
    that leads nowhere". A folder or a file that is there already is not in the way of another one.
    """
    for place in (path, *path.parents):
        try:
            place.lstat()
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                # It is not there; what is there of the folders above it decides.
                continue
            return f"cannot be used: {getattr(error, 'strerror', None) or error}"
        try:
            mode = place.stat().st_mode
        except OSError:
            fault = "is a link that leads nowhere"
        else:
            wanted = stat.S_ISDIR if folder or place != path else stat.S_ISREG
            fault = "" if wanted(mode) else f"is {_kind(mode)}"
        return None if not fault else fault if place == path else f"lies in {place}, which {fault}"
    return None


class AtomicFile:
    """The file that `atomic_file` is writing; `write` appends bytes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append all of `data`. A single `os.write` may write only a part, hence the loop."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while len(view):
            written = os.write(self._descriptor, view)
            self.size += written
            view = view[written:]


@contextlib.contextmanager
def replacing(path: Path, what: str, *, durable: bool = False, hint: str | None = None) -> Iterator[Path]:
    """Yield a temporary path next to `path`. When the block succeeds, the temporary file is renamed to `path`.

    On any failure the temporary file is removed and `path` keeps its old content; an `OSError` becomes a
    `ResourceError`. A pipe or a device (/dev/null) is refused, since the rename would remove it. what, hint: the action
    and the remedy for its message, as in `resource_error`. durable: wait until the disk has the rename, so that it
    survives a power cut.
    """
    temp = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_TEMP_SUFFIX}"
    with contextlib.suppress(OSError, ValueError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ResourceError(f"Cannot {what}: {path} is {_kind(mode)}, not a file.", hint=hint or "")
    try:
        yield temp
        os.replace(temp, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        raise resource_error(error, what, path, hint) from error
    finally:
        # After success the temporary name no longer exists.
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_file(path: Path, what: str, *, hint: str | None = None) -> Iterator[AtomicFile]:
    """Write `path` completely or not at all, as `replacing` does; the bytes are on disk before the rename."""
    with replacing(path, what, durable=True, hint=hint) as temp:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
        try:
            yield AtomicFile(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def staging_folder(parent: Path, what: str) -> Iterator[Path]:
    """Yield a new folder in `parent`, for files that are to appear together; it is removed after the block.

    The block moves the files to their places when all of them are written. `parent` is created if it does not exist.
    what: the action for error messages; an `OSError` of the block becomes a `ResourceError`. Folders that killed
    processes left in `parent` are removed after a day.
    """
    folder = parent / f".staging.{os.getpid()}-{secrets.token_hex(4)}{_TEMP_SUFFIX}"
    try:
        folder.mkdir(parents=True)
        for other in parent.iterdir():
            if is_temp(other) and other.is_dir() and time.time() - other.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
        yield folder
    except OSError as error:
        raise resource_error(error, what, parent) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut. Windows cannot open folders and needs no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temp(path: Path) -> bool:
    """Whether `path` is named like a file under construction."""
    return path.name.startswith(".") and path.name.endswith(_TEMP_SUFFIX)


def remove_stale_temps(folder: Path) -> int:
    """Delete the temporary files that killed writers left in `folder`, which we must have locked; return how many."""
    stale = [p for p in folder.iterdir() if is_temp(p)] if folder.is_dir() else []
    for path in stale:
        path.unlink(missing_ok=True)
    return len(stale)


def finite_or_none(value: JSON) -> JSON:
    """`value` with every NaN and infinity replaced by None, because JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_none(item) for item in value]
    return value


def number_or_none(value: JSON) -> float | None:
    """A number of a JSON document as a float; None for any other value, a truth value included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def json_bytes(value: JSON) -> bytes:
    """Readable, stable JSON: keys in the order given, two spaces, newline at the end. Floats round-trip exactly."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A file name that is not valid UTF-8 contains lone surrogates, which JSON can hold only as escapes.
        return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


class UnreadableFile(Exception):
    """A file whose content cannot be used. `what` completes a sentence that begins with the file's name.

    For instance "is cut short: the JSON ends at line 3, column 1." Callers turn it into an error of their own kind.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Raises `UnreadableFile` for anything else, and never waits.

    A pipe or a device is refused, since reading one may never end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise UnreadableFile(f"cannot be opened: {error.strerror or error}.") from error
    except ValueError as error:
        raise UnreadableFile(f"cannot be opened: its name is not valid ({error}).") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableFile(f"is {_kind(mode)}, not a file.")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror or error}.") from error
    finally:
        os.close(descriptor)


def read_file(path: Path, *, largest: int | None = None) -> bytes:
    """The bytes of a regular file, opened by `open_file`. largest: the most bytes to accept."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if largest is not None and size > largest:
            raise UnreadableFile(f"has {size} bytes; at most {largest} are read.")
        return file.read()


def file_digest(path: Path, prefix: bytes = b"") -> str:
    """sha256 in hex of `prefix` and the bytes of a regular file, which it reads in pieces. Raises `UnreadableFile`.

    If `begin_digest` has begun to hash the file, and it is the same since, this waits for that result.
    """
    begun = _BEGUN.pop(_identity(path), None) if _BEGUN and not prefix else None
    return _digest(path, prefix, 1 << 20) if begun is None else begun.result()


def begin_digest(path: Path) -> None:
    """Begin to hash a file in a thread, for a `file_digest` that will be asked for later. Says nothing of errors."""
    identity = _identity(path)
    if identity is None:
        return
    found: Future[str] = Future()

    def work() -> None:
        try:
            # Each piece waits for Python's lock, up to 5 ms while another thread imports modules: let there be few.
            found.set_result(_digest(path, b"", 1 << 24))
        except BaseException as error:
            found.set_exception(error)

    _BEGUN[identity] = found
    # Nobody waits for it at the end of the process.
    threading.Thread(target=work, daemon=True).start()


_Identity = tuple[str, int, int, int, int]
_BEGUN: dict[_Identity | None, Future[str]] = {}
"""Digests that `begin_digest` has begun, by what tells whether a file has changed."""


def _identity(path: Path) -> _Identity | None:
    """Path, device, number, size and time of change of a file; None if there is no regular file."""
    try:
        state = path.stat()
    except OSError:
        return None
    own = str(path.absolute()), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
    return own if stat.S_ISREG(state.st_mode) else None


def _digest(path: Path, prefix: bytes, piece: int) -> str:
    digest, room = hashlib.sha256(prefix), memoryview(bytearray(piece))
    with open_file(path) as file:
        while count := file.readinto(room):
            digest.update(room[:count])
    return digest.hexdigest()


def _kind(mode: int) -> str:
    """What a path is."""
    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        return "a folder" if stat.S_ISDIR(mode) else "a file"
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def parse_json(data: bytes) -> JSON:
    """The value of a JSON document in UTF-8, with or without a byte order mark. Raises `UnreadableFile`.

    Integers beyond 64 bits become floats, possibly infinite: no reader has to expect numbers of thousands of digits.
    """
    try:
        return json.loads(data.decode("utf-8-sig"), parse_int=_parse_int)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        cut = error.pos >= len(error.doc.rstrip())
        what = f"is cut short: the JSON ends at {place}." if cut else f"is not valid JSON at {place}: {error.msg}."
        raise UnreadableFile(what) from error
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"is not text: byte {error.start} is not UTF-8.") from error
    except RecursionError as error:
        raise UnreadableFile("is not a document that raymine can read: its JSON is nested too deeply.") from error


def read_json(path: Path, *, largest: int | None = None) -> JSON:
    """The value of the JSON document in a file, by `read_file` and `parse_json`: the only reader of JSON files."""
    return parse_json(read_file(path, largest=largest))


def read_object(path: Path) -> dict[str, JSON]:
    """The JSON object in a file; {} if the file cannot be read or holds another value."""
    try:
        found = read_json(path)
    except UnreadableFile:
        return {}
    return found if isinstance(found, dict) else {}


def _parse_int(text: str) -> int | float:
    value = int(text) if len(text) <= 20 else 2**64
    return value if -(2**63) <= value < 2**64 else float(text)


def flattened(value: JSON, name: str = "") -> dict[str, JSON]:
    """The leaves of a JSON value by dotted name, such as `loss[0].delta`. Lists of plain values are leaves."""
    if isinstance(value, dict) and value:
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {name: value} if name else {}
    return {leaf: found for key, item in items for leaf, found in flattened(item, key).items()}


def write_json(path: Path, value: JSON, what: str, *, hint: str | None = None) -> None:
    """Write `value` to `path` atomically; `what` and `hint` are the action and the remedy for error messages."""
    data = json_bytes(value)
    with atomic_file(path, what, hint=hint) as file:
        file.write(data)


def file_lock(path: Path) -> BaseFileLock:
    """A lock on the file `path`, not acquired yet. One lock object of one process can hold it at a time.

    The operating system releases it when the process ends, however it ends. The file stays after the release: if it
    were removed, two processes could lock two different files of the same name. Its content has no meaning. Acquiring
    raises `OSError` if the file cannot be written or the file system has no locks.
    """
    from filelock import FileLock

    return FileLock(path, thread_local=False, preserve_lock_file=True)
