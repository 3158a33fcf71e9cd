"""A run that several processes train: rank 0 leads, and the others follow.

Rank 0 alone has a run folder, a clock, observers, evaluations and checkpoints. The others hold the same model, and wait
for commands: take so many steps, take this state, end. So limits, horizons, rollbacks and signals are decided once.
While rank 0 does something else, a thread of it sends `wait`, so that silence always means that a process is lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from raymine._version import __version__
from raymine.config import differences, identity
from raymine.contracts import StepReport
from raymine.engines import Engine
from raymine.errors import ConfigError, RaymineError, option
from raymine.files import JSON
from raymine.step import TrainState
from raymine.step.distributed.ranks import PeerLostError, Ranks

from .prepare import Prepared

Result = TypeVar("Result")

WAIT, ADVANCE, RESTORE, END = range(4)
"""Commands of rank 0."""


class EndedByLeaderError(RaymineError):
    """Rank 0 has told the user what was wrong; this process ends with the same exit code and says nothing."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("rank 0 ended the run")
        self.exit_code = exit_code


class _Outcome(NamedTuple):
    """What a rank tells the others. facts: what must be the same on all of them, by name."""

    host: str
    facts: dict[str, JSON]
    problem: tuple[str, str, int] | None
    shared: JSON


def together(
    ranks: Ranks,
    work: Callable[[], Result],
    facts: Callable[[Result], dict[str, JSON]] = lambda _: {},
    shared: Callable[[Result], JSON] = lambda _: None,
) -> tuple[Result, JSON]:
    """Do `work` on every rank. If it fails on one, or if their facts differ, rank 0 raises and the others end silently.

    shared: what rank 0 gives to the others of its result; the second value returned.
    """
    if not ranks.active:
        return work(), None
    own: RaymineError | None = None
    told = _Outcome(socket.gethostname(), {}, None, None)
    try:
        result = work()
        told = told._replace(facts=facts(result), shared=shared(result) if ranks.leads else None)
    except RaymineError as error:
        own = error
        told = told._replace(problem=(error.message, error.hint, error.exit_code))
    outcomes = _outcomes(ranks, told, own)
    rank = _failed(outcomes)
    if rank is not None:
        message, hint, code = outcomes[rank].problem or ("", "", 1)
        if not ranks.leads:
            raise EndedByLeaderError(code)
        if own is not None and rank == ranks.rank:
            raise own
        failed = RaymineError(f"Rank {rank} on {outcomes[rank].host}: {message}", hint=hint)
        failed.exit_code = code
        raise failed
    _require_agreement(ranks, outcomes)
    return result, outcomes[0].shared


def _outcomes(ranks: Ranks, told: _Outcome, own: RaymineError | None) -> list[_Outcome]:
    """What every rank tells. own: the error of this rank, which is raised if another one is gone."""
    while True:
        try:
            found = ranks.gather_objects(told)
        except PeerLostError:
            if own is not None:
                raise own from None
            raise
        # A rank that was in `Ranks.meet` when another one failed learns it there, and tells its own outcome next.
        if all(outcome is not None for outcome in found):
            return found


def _failed(outcomes: Sequence[_Outcome]) -> int | None:
    """The first rank that failed, or None. One that failed since it waited for another in vain comes last."""
    failed = [(out.problem[2] == PeerLostError.exit_code, rank) for rank, out in enumerate(outcomes) if out.problem]
    return min(failed)[1] if failed else None


def _require_agreement(ranks: Ranks, outcomes: Sequence[_Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        changed = differences(outcomes[0].facts, outcome.facts)
        if not changed:
            continue
        if not ranks.leads:
            raise EndedByLeaderError(ConfigError.exit_code)
        raise ConfigError(
            f"Rank {rank} on {outcome.host} disagrees with rank 0 ({'; '.join(changed)}).",
            hint="Start every process with the same command, the same raymine and the same scene.",
        )


def facts_of(prepared: Prepared) -> dict[str, JSON]:
    """What all ranks must agree about before training: version, scene and config. Not where the scene lies.

    `ConfigError` if the images do not fit on a device: which part of them it holds is decided by its own free memory.
    """
    if prepared.config.train.image_memory is not None:
        raise ConfigError(
            "The images do not fit into the memory of the GPU, and several processes cannot train on a part of them at "
            "a time.",
            hint=f"Train with one process, with a larger {option('downscale')}, or with more {option('gpu_memory')}.",
        )
    config = prepared.config.to_json()
    limits = {key: config[key] for key in ("steps", "max_seconds")}
    return {"version": __version__, "scene digest": prepared.digest, **limits, "config": identity(config)}


class Leader:
    """Rank 0 of a run. `advance` takes steps on every rank. Use it in a `with` block, whose end ends the others.

    exit_code: that of the others, if the block ends without an error.
    """

    def __init__(self, ranks: Ranks, state: TrainState, engine: Engine) -> None:
        self._ranks, self._state, self._engine = ranks, state, engine
        self._sent = -1
        self._stepping = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.exit_code = 0

    def advance(self, steps: int) -> Sequence[StepReport]:
        """As `Engine.advance`, on every rank. Where the state was restored since, the others get it first."""
        if not self._ranks.active:
            return self._engine.advance(steps)
        state = self._state
        with self._lock:
            self._stepping = True
            if state.restore_count != self._sent:
                self._send(RESTORE)
                send_state(self._ranks, state)
                self._sent = state.restore_count
            self._send(ADVANCE, steps)
            reports = self._engine.advance(steps)
            self._stepping = False
            return reports

    def _send(self, command: int, steps: int = 0) -> None:
        self._ranks.broadcast_numbers([command, steps, self._state.step, self._state.horizon, self.exit_code])

    def _keep_waiting(self) -> None:
        """Send `wait` now and then while this process evaluates or saves."""
        while not self._ended.wait(self._ranks.timeout / 4):
            with self._lock, contextlib.suppress(PeerLostError):
                if not self._ended.is_set():
                    self._send(WAIT)

    def __enter__(self) -> Leader:
        if self._ranks.active:
            threading.Thread(target=self._keep_waiting, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self._ended.set()
        # Others that are in the middle of a step take no command. They notice that this process has ended.
        if not self._ranks.active or self._stepping or isinstance(error, PeerLostError):
            return
        if error is not None:
            self.exit_code = error.exit_code if isinstance(error, RaymineError) else 1
        # An error of this process is the one to report, also if the others are gone by now.
        with self._lock, contextlib.suppress(PeerLostError):
            self._send(END)


def obey(ranks: Ranks, state: TrainState, engine: Engine) -> int:
    """Follow the commands of rank 0 until it ends the run. Returns the exit code that it gives."""
    while True:
        command, steps, step, horizon, code = ranks.broadcast_numbers([0] * 5)
        if command == END:
            return code
        if command == RESTORE:
            receive_state(ranks, state)
        elif command == ADVANCE:
            # After a rollback the counters stay where they were.
            state.step, state.horizon = step, horizon
            engine.advance(steps)


def send_state(ranks: Ranks, state: TrainState) -> None:
    """Give every other rank the state of rank 0."""
    ranks.broadcast_object(state.scalars())
    for _, value in sorted(state.tensors().items()):
        ranks.broadcast(value)


def receive_state(ranks: Ranks, state: TrainState) -> None:
    """Take the state that rank 0 sends."""
    scalars = ranks.broadcast_object(None)
    tensors = {name: ranks.broadcast(value) for name, value in sorted(state.tensors().items())}
    state.restore(tensors, scalars)


@contextlib.contextmanager
def errors_told(ranks: Ranks) -> Iterator[None]:
    """Prefix an error of a rank other than 0 with its rank, since several processes write to one terminal."""
    try:
        yield
    except (PeerLostError, EndedByLeaderError):
        raise
    except RaymineError as error:
        if ranks.leads:
            raise
        failed = RaymineError(f"Rank {ranks.rank} on {socket.gethostname()}: {error.message}", hint=error.hint)
        failed.exit_code = error.exit_code
        raise failed from error
