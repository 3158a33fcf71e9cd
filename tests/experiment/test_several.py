"""What the processes of a run tell each other before and between its steps, with threads in their place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raymine.errors import ConfigError, RaymineError
from raymine.experiment.several import EndedByLeaderError, Leader, together
from raymine.step.distributed.meeting import Place
from raymine.step.distributed.ranks import PeerLostError, Ranks


class Table:
    """Where two threads meet. Whoever waits for one that is gone learns that."""

    def __init__(self) -> None:
        self.barrier, self.told = threading.Barrier(2), [None, None]

    def gather(self, rank: int, own: Any) -> list[Any]:
        try:
            self.told[rank] = own
            self.barrier.wait(60)
            found = list(self.told)
            self.barrier.wait(60)
        except threading.BrokenBarrierError:
            raise PeerLostError("a peer is gone") from None
        return found


class ThreadRanks(Ranks):
    """One of two ranks that are threads. Commands of rank 0 are collected."""

    def __init__(self, rank: int, table: Table) -> None:
        super().__init__(Place(rank, 2, rank, 2), timeout=60.0)
        self.active, self._table, self.commands = True, table, list[int]()

    def gather_objects(self, own: Any) -> list[Any]:
        return self._table.gather(self.rank, own)

    def broadcast_numbers(self, own: Any) -> list[int]:
        self.commands.append(own[0])
        return list(own)

    def broadcast_object(self, own: Any) -> Any:
        return own


def both(work: Callable[[ThreadRanks], Any]) -> list[Any]:
    """Do `work` as rank 0 and as rank 1: what each gives, or raises."""
    table, found = Table(), [None, None]

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadRanks(rank, table))
        except RaymineError as error:
            found[rank] = error
            if isinstance(error, PeerLostError):
                table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def test_results_come_with_what_rank_0_shares() -> None:
    found = both(lambda ranks: together(ranks, lambda: ranks.rank, shared=lambda rank: f"of {rank}"))
    assert found == [(0, "of 0"), (1, "of 0")]


def failing(ranks: Ranks, rank: int, error: RaymineError) -> None:
    if ranks.rank == rank:
        raise error


@pytest.mark.parametrize("rank", [0, 1])
def test_error_before_ranks_meet_is_told_once_by_rank_0(rank: int) -> None:
    def work(ranks: ThreadRanks) -> None:
        failing(ranks, rank, ConfigError("no room on this device", hint="Take another."))
        ranks.meet()

    first, second = both(lambda ranks: together(ranks, lambda: work(ranks)))
    assert isinstance(first, RaymineError)
    assert "no room on this device" in first.message
    assert first.hint == "Take another."
    assert first.exit_code == ConfigError.exit_code
    assert isinstance(second, EndedByLeaderError)
    assert second.exit_code == ConfigError.exit_code


def test_error_after_ranks_met_outranks_that_of_the_rank_that_waited() -> None:
    def work(ranks: ThreadRanks) -> None:
        ranks.meet()
        failing(ranks, 1, ConfigError("no room"))
        failing(ranks, 0, PeerLostError("rank 1 did not answer"))

    first, second = both(lambda ranks: together(ranks, lambda: work(ranks)))
    assert "Rank 1 on " in first.message
    assert "no room" in first.message
    assert isinstance(second, EndedByLeaderError)


def test_own_error_is_told_where_the_other_rank_is_gone() -> None:
    def work(ranks: ThreadRanks) -> Any:
        if ranks.rank == 1:
            raise PeerLostError("killed")
        return together(ranks, lambda: failing(ranks, 0, ConfigError("no room")))

    first, _ = both(work)
    assert isinstance(first, ConfigError)
    assert first.message == "no room"


def test_rank_0_sends_no_command_into_a_step_that_failed() -> None:
    ranks = ThreadRanks(0, Table())
    state: Any = SimpleNamespace(restore_count=-1, step=3, horizon=5)
    broken = True

    def advance(steps: int) -> list[Any]:
        if broken:
            raise ConfigError("out of memory")
        return []

    engine: Any = SimpleNamespace(advance=advance)
    with pytest.raises(ConfigError), Leader(ranks, state, engine) as leader:
        leader.advance(1)
    assert ranks.commands == [1]
    broken = False
    leader = Leader(ranks, state, engine)
    leader.advance(1)
    leader.__exit__(ConfigError, ConfigError("the disk is full"))
    assert ranks.commands == [1, 1, 3]
    assert leader.exit_code == ConfigError.exit_code
