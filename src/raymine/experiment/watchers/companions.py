"""What runs beside the training of a run and never holds it up: trackers, the monitor of the machine, the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from raymine.config import RunConfig
from raymine.contracts import StepReport
from raymine.files import flattened
from raymine.monitor import Monitor
from raymine.rundir import RunDir
from raymine.tracking import RunDescription, SinkThread, make_sink

from ..observers import Event, Observer, Observers
from ..request import TrainRequest
from .machine_watch import MachineWatch, WaitClock
from .profile import ProfiledSteps
from .tracker import Tracker

Advance = Callable[[int], Sequence[StepReport]]


class Companions:
    """The companions of one run. observer: tells the trackers and the monitor. advance: that of the engine, profiled
    where that was asked for."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        request: TrainRequest,
        step: int,
        advance: Advance,
        waited: Callable[[], float],
        from_file: bool,
        device: torch.device,
        others: Observer,
    ) -> None:
        """others: who is told about events, besides the trackers. waited: seconds waited for pixels so far, by anybody.
        from_file: whether pixels are read from the file, because the images do not fit into memory."""
        described = RunDescription(run.path.absolute(), config.scene, config.recipe, flattened(config.to_json()), step)
        sinks = [SinkThread(name, make_sink(name, described)) for name in request.track]
        self._tracker = Tracker(sinks, others.on_event)
        told = Observers([others, self._tracker])
        gpu = None if device.type != "cuda" else device.index or torch.cuda.current_device()
        on_cpu = device.type == "cpu"
        clock = WaitClock(advance, waited)
        self._watch = MachineWatch(
            Monitor(gpu), lambda: clock.seconds, told.on_event, on_cpu=on_cpu, from_file=from_file
        )
        self.observer: Observer = Observers([self._tracker, self._watch])
        self.advance: Advance = clock.advance
        if request.profile:

            def tell(message: str, warning: bool) -> None:
                told.on_event(Event("profile", message, step, "warning" if warning else "info"))

            self.advance = ProfiledSteps(clock.advance, run.path / "profile", tell)

    def close(self, step: int) -> None:
        """Let the trackers finish and stop the monitor. step: that of the run, for warnings."""
        self._watch.close()
        self._tracker.close(step)
