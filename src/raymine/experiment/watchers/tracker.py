"""The observer that hands metrics to trackers (`--track`). A tracker that fails costs one warning, never the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from raymine.tracking import SinkThread

from ..observers import EvalInfo, Event, SilentObserver, StepInfo
from ..request import RunResult


class Tracker(SilentObserver):
    """Sends training and evaluation metrics to sinks. tell: receives one warning for each sink that is dropped."""

    def __init__(self, sinks: Sequence[SinkThread], tell: Callable[[Event], None]) -> None:
        self._sinks = list(sinks)
        self._tell = tell

    def on_step(self, info: StepInfo) -> None:
        values = {
            "train/loss": info.loss,
            "train/psnr": info.psnr,
            "train/learning_rate": info.learning_rate,
            "train/rays": info.rays,
            "train/samples_per_second": info.samples_per_second,
            "train/elapsed": info.elapsed,
            **{f"train/{name}": value for name, value in info.extra.items()},
        }
        self._send(info.step, values)

    def on_eval(self, info: EvalInfo) -> None:
        self._send(info.step, {f"{info.split}/psnr": info.psnr})

    def on_event(self, event: Event) -> None:
        if event.kind == "monitor":
            numbers = {f"machine/{name}": value for name, value in event.data.items() if isinstance(value, int | float)}
            self._send(event.step, numbers)

    def on_end(self, result: RunResult) -> None:
        self.close(result.step)

    def close(self, step: int = 0) -> None:
        """Let the sinks finish; those that do not are left behind. Closing again has no effect."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            sink.close()
        self._warn(sinks, step)

    def _send(self, step: int, values: Mapping[str, float | None]) -> None:
        known = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
        for sink in self._sinks:
            sink.offer(step, known)
        broken = [sink for sink in self._sinks if sink.problem]
        if broken:
            self._sinks = [sink for sink in self._sinks if sink not in broken]
            self._warn(broken, step)

    def _warn(self, sinks: Sequence[SinkThread], step: int) -> None:
        for sink in sinks:
            if sink.problem:
                message = f"the tracker {sink.name} {sink.problem}; the run goes on without it"
                self._tell(Event("tracker", message, step, "warning"))
