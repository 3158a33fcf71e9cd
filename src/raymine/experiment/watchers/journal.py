"""The observer that writes `metrics.jsonl` and `events.jsonl`."""

from __future__ import annotations

from datetime import datetime, timezone

from raymine.files import JSON
from raymine.metrics_log import JsonlWriter, repair
from raymine.rundir import RunDir

from ..observers import EvalInfo, Event, SilentObserver, StartInfo, StepInfo
from ..request import RunResult


class Journal(SilentObserver):
    """Writes the reports of the loop to the logs.

    In metric rows, all values except `elapsed`, `seconds` and `samples_per_second` are a function of config and data.
    """

    def __init__(self, run: RunDir, last_step: int) -> None:
        """Open the logs of a run that continues from `last_step`. Metric rows after that step are removed first.

        The repair must come before the log is opened, because it replaces the file. `repaired` says what was removed.
        """
        self._events = JsonlWriter(run.events)
        self.repaired = repair(run.metrics, last_step)
        self._metrics = JsonlWriter(run.metrics)

    def on_start(self, info: StartInfo) -> None:
        self._event("start", f"training from step {info.step}", info.step, "info", {"elapsed": info.elapsed})

    def on_step(self, info: StepInfo) -> None:
        row: dict[str, JSON] = {
            "kind": "train",
            "step": info.step,
            "loss": info.loss,
            "psnr": info.psnr,
            "rays": info.rays,
            "marched": info.marched,
            "trained": info.trained,
            "lr": info.learning_rate,
            "skipped": info.skipped,
            "horizon": info.horizon,
        }
        if info.extra:
            row["extra"] = info.extra
        self._metrics.write({**row, "elapsed": info.elapsed, "samples_per_second": info.samples_per_second})

    def on_event(self, event: Event) -> None:
        self._event(event.kind, event.message, event.step, event.level, event.data)

    def on_eval(self, info: EvalInfo) -> None:
        row: dict[str, JSON] = {"kind": "eval", "step": info.step, "split": info.split, "psnr": info.psnr}
        self._metrics.write({**row, "views": info.views, "seconds": info.seconds})

    def on_end(self, result: RunResult) -> None:
        self._event("end", f"{result.status} at step {result.step}", result.step, "info", {"elapsed": result.elapsed})

    def sync(self) -> None:
        """Flush the logs to disk. Called before each checkpoint, so that no checkpoint is ahead of its logs."""
        self._metrics.sync()
        self._events.sync()

    def close(self) -> None:
        self._metrics.close()
        self._events.close()

    def _event(self, kind: str, message: str, step: int, level: str, data: dict[str, JSON]) -> None:
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        row: dict[str, JSON] = {"time": time, "kind": kind, "level": level, "step": step, "message": message}
        self._events.write({**row, **({"data": data} if data else {})})
