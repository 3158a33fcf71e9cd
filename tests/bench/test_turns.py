"""Turns of processes that share a machine."""

from __future__ import annotations

import threading
from pathlib import Path

from raymine.bench.turns import turn


def test_one_trains_at_a_time(tmp_path: Path) -> None:
    lock, inside, most = tmp_path / "new" / "lock", 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with turn(lock):
                with guard:
                    inside += 1
                    most = max(most, inside)
                threading.Event().wait(0.005)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_without_a_file_nobody_waits() -> None:
    with turn(None), turn(None):
        pass
