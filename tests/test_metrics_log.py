"""JSONL logs: truncated and damaged lines, full disks, and removal of later rows on resume."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from raymine.errors import ResourceError, RunError
from raymine.metrics_log import JsonlWriter, Repair, read_rows, repair


def write(path: Path, *rows: dict[str, object]) -> None:
    writer = JsonlWriter(path)
    for row in rows:
        writer.write(row)
    writer.close()


def test_rows_are_readable_at_once_and_non_finite_values_are_null(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "m.jsonl")
    writer.write({"step": 1, "loss": 0.1 + 0.2, "name": "ü\n"})
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1, "loss": 0.30000000000000004, "name": "ü\n"}]
    writer.write({"step": 2, "loss": math.nan, "extra": {"x": math.inf}})
    assert read_rows(tmp_path / "m.jsonl")[1] == {"step": 2, "loss": None, "extra": {"x": None}}
    writer.sync()
    writer.close()
    writer.close()
    with pytest.raises(RunError, match="already closed"):
        writer.write({})


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "none.jsonl") == []
    assert repair(tmp_path / "none.jsonl", 5) == Repair(0, 0, 0)


@pytest.mark.parametrize("cut", [b'{"step": 3, "lo', b"{", b'{"step": 3}'])
def test_truncated_last_line_is_skipped_by_readers_and_removed_by_writers(tmp_path: Path, cut: bytes) -> None:
    path = tmp_path / "m.jsonl"
    write(path, {"step": 1}, {"step": 2})
    with open(path, "ab") as file:
        file.write(cut)
    assert [r["step"] for r in read_rows(path)] == [1, 2]
    write(path, {"step": 3})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_file_of_one_truncated_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"x" * 10_000)
    assert read_rows(path) == []
    JsonlWriter(path).close()
    assert path.read_bytes() == b""


def test_truncated_line_longer_than_a_block_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + b"x" * 9_000)
    JsonlWriter(path).close()
    assert path.read_bytes() == b'{"step": 1}\n'


def test_repair_removes_only_later_rows(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, {"step": 10}, {"note": "no step"}, {"step": 20}, {"step": 30})
    untouched = path.stat().st_ino
    assert repair(path, 30) == Repair(4, 0, 0)
    assert path.stat().st_ino == untouched, "a good file is not rewritten"
    assert repair(path, 20) == Repair(3, 1, 0)
    assert read_rows(path) == [{"step": 10}, {"note": "no step"}, {"step": 20}]
    assert repair(path, -1) == Repair(1, 2, 0)


def test_damage_in_the_middle_is_reported_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\x00\xff\n[1]\n{"step": 2}\n{"st')
    with pytest.raises(RunError, match=r"m\.jsonl, line 2 is not a JSON object"):
        read_rows(path)
    assert repair(path, 2) == Repair(2, 0, 3)
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_full_disk_leaves_only_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    writer = JsonlWriter(path)
    writer.write({"step": 1})
    real, calls = os.write, []

    def half_then_full(descriptor: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) == 1:
            return real(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(ResourceError, match="no space left"):
        writer.write({"step": 2})
    monkeypatch.undo()
    assert path.read_bytes() == b'{"step": 1}\n'
    writer.write({"step": 3})
    writer.close()
    assert [r["step"] for r in read_rows(path)] == [1, 3]


def test_unwritable_log_raises_resource_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match="no permission to write"):
        JsonlWriter(tmp_path / "m.jsonl")


def test_log_that_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "folder", "device", "loop"):
        with pytest.raises(RunError, match=f"The log .*{name} is not a file"):
            JsonlWriter(tmp_path / name)
        if name != "loop":
            with pytest.raises(RunError, match=f"The log .*{name} (is a|cannot be read)"):
                read_rows(tmp_path / name)


def test_rows_with_huge_numbers_and_deep_nesting_do_not_stop_a_repair(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    lines = [b'{"step": 1}', b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}", b"\xed\xa0\x80", b"[]"]
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    assert repair(log, 5) == Repair(kept=1, later=1, unreadable=3)
