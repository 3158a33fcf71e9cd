"""What `train` and `demo` say while they work. Imported when they run, since it imports torch."""

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
    """Says what was decided before training starts: scene, warnings, backends."""

    def on_start(self, info: StartInfo) -> None:
        for sentence in info.notes:
            output.say(sentence)
        for sentence in info.warnings:
            output.warn(sentence)
        output.say(backend_sentence(info.device.partition(":")[0]))


def backend_sentence(device: str) -> str:
    """Which backend runs the operations on `device`, and why, in one line."""
    groups: dict[str, list[str]] = {}
    for choice in dispatch.explain(device):
        groups.setdefault(f"{choice.backend} ({choice.reason})", []).append(choice.op)
    if len(groups) == 1:
        return f"Backend: {next(iter(groups))}."
    return "Backends: " + "; ".join(f"{backend}: {', '.join(ops)}" for backend, ops in groups.items()) + "."


def narrated_train(request: TrainRequest) -> RunResult:
    """Train with everything worth knowing on stderr."""
    bar = ProgressObserver(console=output.messages())
    try:
        if str(request.scene) == "builtin":
            # Made on first use, in seconds; asked for here so that those seconds have a bar.
            builtin_scene(progress=partial(bar.loading, "views of the built-in scene"))
        return train(request, observer=Observers([Narrator(), bar]), progress=bar.loading)
    finally:
        bar.close()
