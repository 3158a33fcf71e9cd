"""Messages of `train` and `demo` during training. Imported only when they run, because it imports torch."""

from __future__ import annotations

from functools import partial

from raymine.experiment import (
    Observers,
    ProgressObserver,
    RunResult,
    SilentObserver,
    StartInfo,
    TrainRequest,
    train,
)
from raymine.kernels import dispatch
from raymine.scenes.builtin import builtin_scene

from . import output


class Narrator(SilentObserver):
    """Prints the decisions about the scene, the warnings and the backends before training starts."""

    def on_start(self, info: StartInfo) -> None:
        for sentence in info.notes:
            output.say(sentence)
        for sentence in info.warnings:
            output.warn(sentence)
        output.say(backend_sentence(info.device.partition(":")[0]))


def backend_sentence(device: str) -> str:
    """One sentence: which backends run the ops on `device`, and why."""
    groups: dict[str, list[str]] = {}
    for choice in dispatch.explain(device):
        groups.setdefault(f"{choice.backend} ({choice.reason})", []).append(choice.op)
    if len(groups) == 1:
        return f"Backend: {next(iter(groups))}."
    return "Backends: " + "; ".join(f"{backend}: {', '.join(ops)}" for backend, ops in groups.items()) + "."


def narrated_train(request: TrainRequest) -> RunResult:
    """Train, with messages and progress on stderr."""
    bar = ProgressObserver(console=output.messages())
    try:
        if str(request.scene) == "builtin":
            # The first use generates this scene, which takes seconds. Done here, it has a progress bar.
            builtin_scene(progress=partial(bar.loading, "views of the built-in scene"))
        return train(request, observer=Observers([Narrator(), bar]), progress=bar.loading)
    finally:
        bar.close()
