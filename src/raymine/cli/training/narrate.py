"""Messages of `train` and `demo` during training. Imported only when they run, because it imports torch."""

from __future__ import annotations

from raymine.experiment import (
    Observer,
    Observers,
    RunResult,
    SilentObserver,
    StartInfo,
    Stopwatch,
    TrainRequest,
    train_with_progress,
)
from raymine.kernels import dispatch
from raymine.step.distributed.ranks import SOLO, Ranks

from .. import output


class Narrator(SilentObserver):
    """Prints the decisions about the scene and the warnings before training starts; the backends with `verbose`."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose

    def on_start(self, info: StartInfo) -> None:
        for sentence in info.notes:
            output.say(sentence)
        for sentence in info.warnings:
            output.warn(sentence)
        if self._verbose:
            for sentence in info.details:
                output.say(sentence)
            output.say(backend_sentence(info.device.partition(":")[0]))


def backend_sentence(device: str) -> str:
    """One sentence: which backends run the ops on `device`, and why."""
    groups: dict[str, list[str]] = {}
    for choice in dispatch.explain(device):
        groups.setdefault(f"{choice.backend} ({choice.reason})", []).append(choice.op)
    if len(groups) == 1:
        return f"Backend: {next(iter(groups))}."
    return "Backends: " + "; ".join(f"{backend}: {', '.join(ops)}" for backend, ops in groups.items()) + "."


def narrated_train(
    request: TrainRequest, *, verbose: bool = False, also: SilentObserver | None = None, ranks: Ranks = SOLO
) -> RunResult:
    """Train, with messages and progress on stderr. verbose: say which backend runs each op. also: another observer.

    ranks: as in `experiment.train`.
    """
    narrator = Narrator(verbose)
    observer: Observer = narrator if also is None else Observers([narrator, also])
    return train_with_progress(request, observer, output.messages(), Stopwatch.of_process(), ranks)
