"""Atomic writes of files, and errors of a failing disk."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from pathlib import Path

import pytest

from raymine import files
from raymine.errors import ResourceError
from raymine.files import (
    UnreadableFile,
    atomic_file,
    begin_digest,
    file_digest,
    finite_or_none,
    is_temp,
    number_or_none,
    obstacle,
    parse_json,
    read_json,
    read_object,
    remove_stale_temps,
    staging_folder,
    write_json,
)


def test_write_replaces_the_whole_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 0.1, "long": "y" * 100}, "write a")
    write_json(path, {"x": 0.30000000000000004}, "write a")
    assert json.loads(path.read_text()) == {"x": 0.30000000000000004}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_value_that_is_not_json_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1}, "write a")
    with pytest.raises(TypeError):
        write_json(path, {"x": object()}, "write a")
    assert json.loads(path.read_text()) == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_non_ascii_and_undecodable_names_round_trip(tmp_path: Path) -> None:
    names = ["é.png", os.fsdecode(b"\xff.png")]
    for name in names:
        write_json(tmp_path / "a.json", {"x": name}, "write a")
        assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"x": name}
    write_json(tmp_path / "a.json", names[:1], "write a")
    assert "é.png" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_exception_while_writing_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), atomic_file(path, "write a") as file:  # noqa: PT012
        file.write(b"new")
        raise KeyError("boom")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "Cannot write a: no space left on the disk"),
        (errno.EDQUOT, "no space left"),
        (errno.EACCES, "no permission to write"),
        (errno.EROFS, "no permission to write"),
        (errno.EIO, "Input/output error"),
        (errno.ENOLCK, "has no file locks"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_failing_disk_raises_resource_error_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str, call: str
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ResourceError, match=words) as caught, atomic_file(path, "write a") as file:
        file.write(b"new")
    assert caught.value.hint, "it says what to do"
    with pytest.raises(ResourceError) as caught:
        write_json(path, {}, "write a", hint="Do this.")
    assert caught.value.hint == "Do this."
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    with atomic_file(tmp_path / "a", "write a") as file:
        file.write(b"0123456789")
        file.write(b"")
    assert file.size == 10
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_only_temporary_files_of_raymine_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.json.77-abcd.raymine-tmp").write_text("half")
    (tmp_path / ".hidden").write_text("not ours")
    (tmp_path / "a.tmp").write_text("not ours")
    assert is_temp(tmp_path / ".a.json.77-abcd.raymine-tmp")
    assert remove_stale_temps(tmp_path) == 1
    assert sorted(os.listdir(tmp_path)) == [".hidden", "a.tmp"]
    assert remove_stale_temps(tmp_path / "nowhere") == 0


def test_finite_or_none_replaces_non_finite_numbers() -> None:
    assert finite_or_none({"a": [1.0, math.nan, (math.inf,)], "b": "nan"}) == {"a": [1.0, None, [None]], "b": "nan"}


def test_number_or_none_takes_numbers_only() -> None:
    assert [number_or_none(value) for value in (1, 2.5, True, "3", None)] == [1.0, 2.5, None, None, None]


def test_write_into_a_missing_folder_raises_and_does_not_create_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ResourceError, match="Cannot write a"):
        write_json(folder / "a.json", {}, "write a")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'{"a": 1', "cut short"),
        (b"", "cut short"),
        (b'{"a" 1}', "not valid JSON at line 1, column 6"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "nested too deeply"),
    ],
)
def test_damaged_json_is_described(data: bytes, what: str) -> None:
    with pytest.raises(UnreadableFile, match=what):
        parse_json(data)


def test_json_with_a_byte_order_mark_and_huge_integers_is_read() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert parse_json(b"9" * 5000) == math.inf
    assert parse_json(b"-" + b"9" * 30) == -1e30
    for exact in (2**63, -(2**63), 2**64 - 1, 0):
        read = parse_json(str(exact).encode())
        assert read == exact
        assert isinstance(read, int)


@pytest.mark.parametrize(("text", "value"), [('{"a": 1}', {"a": 1}), ("[1]", {}), ('{"a"', {})])
def test_read_object_gives_nothing_for_anything_else(tmp_path: Path, text: str, value: dict[str, int]) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read_object(tmp_path / "a.json") == value
    assert read_object(tmp_path / "b.json") == {}


def test_only_regular_files_are_read_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, what in (
        ("pipe", "is a pipe"),
        ("loop", "cannot be opened"),
        ("missing", "No such file"),
        ("x" * 300, "too long"),
        ("a\0b", "name is not valid"),
    ):
        with pytest.raises(UnreadableFile, match=what):
            read_json(tmp_path / name)
    with pytest.raises(UnreadableFile, match="is a folder, not a file"):
        read_json(tmp_path)
    with pytest.raises(UnreadableFile, match="is a device"):
        read_json(Path("/dev/zero"))
    (tmp_path / "long").write_text("[" + "1," * 100 + "1]")
    with pytest.raises(UnreadableFile, match="has 203 bytes; at most 100"):
        read_json(tmp_path / "long", largest=100)


def test_file_digest_is_that_of_the_prefix_and_the_whole_file(tmp_path: Path) -> None:
    data = os.urandom((1 << 20) + 1)
    (tmp_path / "a").write_bytes(data)
    assert file_digest(tmp_path / "a") == hashlib.sha256(data).hexdigest()
    assert file_digest(tmp_path / "a", b"name") == hashlib.sha256(b"name" + data).hexdigest()
    with pytest.raises(UnreadableFile, match="cannot be opened: No such file"):
        file_digest(tmp_path / "b")


def test_a_digest_that_was_begun_is_used_once_and_only_for_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BEGUN", {})
    path = tmp_path / "a"
    path.write_bytes(b"before")
    begin_digest(path)
    begin_digest(tmp_path / "absent")
    (begun,) = files._BEGUN.values()
    assert begun.result() == hashlib.sha256(b"before").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(files, "_digest", lambda *_: "hashed now")
        assert file_digest(path) == hashlib.sha256(b"before").hexdigest()
        assert file_digest(path) == "hashed now"
    begin_digest(path)
    path.write_bytes(b"longer than before")
    assert file_digest(path) == hashlib.sha256(b"longer than before").hexdigest()


def test_obstacle_names_what_is_in_the_way_of_a_file_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")

    def found(name: str, folder: bool) -> str | None:
        return obstacle(tmp_path / name, folder=folder)

    for free in ("new", "new/below", "folder/new"):
        assert found(free, True) is found(free, False) is None
    assert (found("folder", True), found("folder", False)) == (None, "is a folder")
    assert (found("file", True), found("file", False)) == ("is a file", None)
    assert found("pipe", True) == found("pipe", False) == "is a pipe"
    assert found("dangling", True) == found("loop", False) == "is a link that leads nowhere"
    assert found("loop/x", True) == f"lies in {tmp_path / 'loop'}, which is a link that leads nowhere"
    assert found("file/a/b", False) == f"lies in {tmp_path / 'file'}, which is a file"
    assert found("a" * 300, True) == "cannot be used: File name too long"


def test_writing_never_replaces_a_pipe_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name, kind in (("pipe", "a pipe"), ("null", "a device")):
        with pytest.raises(ResourceError, match=f"Cannot write it: .*{name} is {kind}, not a file."):
            write_json(tmp_path / name, {}, "write it")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]
    assert (tmp_path / "null").is_symlink()


def test_staging_folder_is_removed_with_what_is_left_in_it(tmp_path: Path) -> None:
    parent = tmp_path / "deep" / "parent"
    with staging_folder(parent, "write b") as folder:
        assert is_temp(folder)
        (folder / "kept").write_text("x")
        (folder / "left").write_text("y")
        os.replace(folder / "kept", parent / "kept")
    assert os.listdir(parent) == ["kept"]
    with pytest.raises(KeyError), staging_folder(parent, "write b"):
        raise KeyError("boom")
    with (
        pytest.raises(ResourceError, match="Cannot write b: no space left on the disk"),
        staging_folder(parent, "write b"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert os.listdir(parent) == ["kept"]


def test_staging_folder_in_a_file_raises_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResourceError, match="Cannot write b"), staging_folder(tmp_path / "file", "write b"):
        pass
    assert (tmp_path / "file").read_text() == "x"


def test_only_old_staging_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".staging.1-a.raymine-tmp", ".staging.2-b.raymine-tmp", "images"))
    for folder in (old, new, other):
        folder.mkdir()
        (folder / "x").write_text("x")
    for folder in (old, other):
        os.utime(folder, (0, 0))
    with staging_folder(tmp_path, "write b"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([new.name, "images"])
