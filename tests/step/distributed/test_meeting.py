"""How processes find each other in a store that holds what lost ones wrote."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist

from raymine.errors import ConfigError
from raymine.step.distributed.meeting import (
    Notes,
    Place,
    await_master,
    interface_to,
    loopback,
    loopback_store,
    name_attempt,
)
from support.listening import free_port

LIMIT = 60.0


@pytest.fixture
def store() -> dist.Store:
    found = dist.HashStore()
    found.set_timeout(timedelta(seconds=LIMIT))
    return found


def names(store: dist.Store, world: int) -> list[str]:
    """What the ranks of one attempt agree on. Rank 0 comes last."""
    with ThreadPoolExecutor(world) as pool:
        found = [pool.submit(name_attempt, store, Place(r, world, r, world), LIMIT) for r in reversed(range(world))]
        return [each.result(timeout=LIMIT) for each in found]


def test_all_ranks_get_one_name_and_each_attempt_another(store: dist.Store) -> None:
    first, second = names(store, 3), names(store, 3)
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert first[0] != second[0]


def test_token_of_a_lost_process_is_not_taken_for_that_of_its_successor(store: dist.Store) -> None:
    store.set("raymine/token/1", "lost")
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(name_attempt, store, Place(0, 2, 0, 2), LIMIT)
        answer = store.get("raymine/answer/lost").decode()
        assert not leader.done(), "nobody has confirmed"
        follower = pool.submit(name_attempt, store, Place(1, 2, 1, 2), LIMIT)
        assert leader.result(timeout=LIMIT) == follower.result(timeout=LIMIT) == answer


def test_missing_processes_are_counted(store: dist.Store) -> None:
    with pytest.raises(ConfigError, match=r"Only 1 of 2 processes came within 0\.1 s"):
        name_attempt(store, Place(0, 2, 0, 2), 0.1)


def test_master_that_nobody_reaches_gets_a_sentence() -> None:
    port = free_port()
    with pytest.raises(ConfigError, match=rf"No process answers at 127\.0\.0\.1:{port}.*refused"):
        await_master("127.0.0.1", port, 0.1)


def test_master_that_comes_later_is_awaited() -> None:
    port = free_port()
    servers: list[dist.Store] = []

    def come() -> None:
        servers.append(dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False))

    timer = threading.Timer(0.3, come)
    timer.start()
    await_master("127.0.0.1", port, LIMIT)
    timer.join()
    assert len(servers) == 1


def test_notes_are_read_by_later_processes(store: dist.Store) -> None:
    notes = Notes(store)
    assert notes.read(Notes.RUN) is None
    notes.write(Notes.RUN, "runs/x-1")
    assert Notes(store).read(Notes.RUN) == "runs/x-1"


def test_notes_without_a_store_keep_nothing() -> None:
    Notes().write(Notes.RUN, "x")
    assert Notes().read(Notes.RUN) is None


def test_interface_to_others_is_never_loopback() -> None:
    assert loopback() is not None
    assert interface_to("127.0.0.1") != loopback()
    assert interface_to("no such host") != loopback()


def test_store_on_loopback_is_reached_from_this_machine_alone() -> None:
    store = loopback_store()
    found = [each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert {address.ip for address in found if address.port == store.port} == {"127.0.0.1"}
    with pytest.raises(OSError, match="in use"):
        loopback_store(store.port)
