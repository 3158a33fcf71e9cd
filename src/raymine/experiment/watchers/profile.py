"""`--profile`: a PyTorch profiler trace of a few steps, and a table of where their time goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from raymine.contracts import StepReport
from raymine.files import atomic_file, replacing

SKIPPED, STEPS = 10, 10
"""Steps that are not profiled, since the first ones are slower than the others, and steps that are."""

_ROWS = 30
_STEPS_ROW = "raymine steps"
_NOTE = f"The own time (Self) of the row `{_STEPS_ROW}` is what torch does not see: Numba kernels and Python."


class ProfiledSteps:
    """An `advance` that profiles some of its steps. folder: where trace.json and summary.txt are written.

    tell: receives a sentence and whether it is a warning. What fails in the profiler does not stop training.
    """

    def __init__(
        self, advance: Callable[[int], Sequence[StepReport]], folder: Path, tell: Callable[[str, bool], None]
    ) -> None:
        self._advance, self._folder, self._tell = advance, folder, tell
        self._taken, self._done = 0, False

    def __call__(self, most: int) -> Sequence[StepReport]:
        if self._done:
            return self._advance(most)
        if self._taken < SKIPPED:
            reports = self._advance(min(most, SKIPPED - self._taken))
            self._taken += len(reports)
            return reports
        self._done = True
        profiler = self._started()
        found: list[StepReport] = []
        with torch.profiler.record_function(_STEPS_ROW):
            while len(found) < min(most, STEPS):
                found += self._advance(min(most, STEPS) - len(found))
        if profiler is not None:
            self._write(profiler, len(found))
        return found

    def _started(self) -> Any:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        try:
            profiler = torch.profiler.profile(activities=activities)
            profiler.start()
        except Exception as error:
            self._tell(f"the profiler could not be started: {error}", True)
            return None
        return profiler

    def _write(self, profiler: Any, steps: int) -> None:
        try:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            profiler.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._folder / "trace.json", "write the trace") as temp:
                profiler.export_chrome_trace(str(temp))
            key = "self_device_time_total" if torch.cuda.is_initialized() else "self_cpu_time_total"
            table = profiler.key_averages().table(sort_by=key, row_limit=_ROWS)
            with atomic_file(self._folder / "summary.txt", "write the profile") as file:
                file.write(f"{steps} steps\n{table}\n{_NOTE}\n".encode())
            self._tell(f"profile of {steps} steps: {self._folder / 'summary.txt'}, and trace.json beside it", False)
        except Exception as error:
            self._tell(f"the profile could not be written: {error}", True)
