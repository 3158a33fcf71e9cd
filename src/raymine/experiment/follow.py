"""A process of a run that does not lead it: it prepares the same model as rank 0, and then obeys its commands."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from raymine import recipes
from raymine.config import RunConfig, allowing
from raymine.files import JSON
from raymine.step.distributed.ranks import Ranks

from .memory import memory_errors
from .prepare import prepare
from .request import TrainRequest
from .several import errors_told, facts_of, obey, together
from .stopwatch import Stopwatch
from .work import limit_memory, make_ready, run_threads, shown_work, warm


def follow(request: TrainRequest, ranks: Ranks) -> int:
    """Train as a rank other than 0, and return the exit code of the run. It writes nothing and shows nothing.

    The steps of `together` are those of `runner.train`, in the same order.
    """
    watch = Stopwatch()
    with contextlib.ExitStack() as stack, errors_told(ranks), _deaf_to_signals():
        _, stored_json = together(ranks, lambda: limit_memory(request, stack, ranks))
        prepared, _ = together(ranks, lambda: prepare(request, _config_of(request, stored_json), ranks=ranks), facts_of)
        stack.enter_context(run_threads(request, prepared, None))
        work, _ = together(
            ranks,
            lambda: make_ready(prepared, None, watch, stack, ranks=ranks),
            shown_work,
        )
        together(ranks, lambda: warm(work))
        with memory_errors(prepared.device):
            return obey(ranks, work.state, work.engine)


def _config_of(request: TrainRequest, stored: JSON) -> RunConfig | None:
    """The config of the run that rank 0 resumes; None for a new run."""
    if stored is None:
        return None
    if request.recipe != recipes.AUTO:
        recipes.find(request.recipe)
    with allowing(request.packages):
        return RunConfig.from_json(stored)


@contextlib.contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """Ignore the first Ctrl-C and SIGTERM, which rank 0 gets too: it saves and ends the run. A second one counts."""

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
