"""The SQLite file of the run index: many writers, damage, other versions."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from pathlib import Path

import pytest

from raymine.rundir.store import IndexFile, Row

WRITERS, SECONDS = 8, 2.0


def _write_many(folder: Path, number: int, seconds: float) -> None:
    index, until, count = IndexFile(folder), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        index.put([Row(f"/runs/{number}/{count}", f"stamp-{count}", "{}")], root=folder)
        count += 1
    (folder / f"count-{number}").write_text(str(count))


def test_eight_writers_lose_and_damage_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(tmp_path, i, SECONDS)) for i in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    counts = {i: int((tmp_path / f"count-{i}").read_text()) for i in range(WRITERS)}
    assert min(counts.values()) > 0
    expected = {f"/runs/{i}/{n}" for i, count in counts.items() for n in range(count)}
    assert {row.path for row in IndexFile(tmp_path).rows()} == expected
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",), "a network file system has no WAL"
    connection.close()
    assert IndexFile(tmp_path).roots() == [tmp_path], "one line, however many processes wrote it"


@pytest.mark.parametrize("damage", ["text", "cut", "version", "holes"])
def test_damaged_file_is_moved_away_and_made_anew(tmp_path: Path, damage: str) -> None:
    index = IndexFile(tmp_path)
    index.put([Row(f"/runs/{i}", "s", "{}" * 200) for i in range(100)])
    data = index.path.read_bytes()
    if damage == "version":
        with sqlite3.connect(index.path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        changed = {
            "text": b"no database\n" * 900,
            "cut": data[:5000],
            "holes": data[:4096] + b"\7" * (len(data) - 4096),
        }
        index.path.write_bytes(changed[damage])
    index.put([Row("/runs/new", "s", "{}")])
    assert [row.path for row in index.rows()] == ["/runs/new"]
    assert (tmp_path / "runs.damaged").exists()


def test_rows_are_replaced_and_removed(tmp_path: Path) -> None:
    index = IndexFile(tmp_path / "later")
    assert index.rows() == []
    index.put([Row("/a", "1", "{}"), Row("/b", "1", "{}")])
    index.put([Row("/a", "2", "{}")])
    assert sorted((row.path, row.stamp) for row in index.rows()) == [("/a", "2"), ("/b", "1")]
    index.remove(["/a", "/nothing"])
    assert [row.path for row in index.rows()] == ["/b"]


def test_busy_file_is_given_up_after_the_patience(tmp_path: Path) -> None:
    index = IndexFile(tmp_path, patience=0.1)
    index.put([])
    other = sqlite3.connect(index.path, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            index.put([Row("/a", "1", "{}")])
    finally:
        other.close()
    index.put([Row("/a", "1", "{}")])
