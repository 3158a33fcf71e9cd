"""Run folders without training, and requests for very short real runs."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from raymine.experiment import SilentObserver, StepInfo, TrainRequest
from raymine.rundir import RunDir
from support.fake_training import manifest
from support.killed_run import TINY


def create_run(path: Path | None, root: Path = Path(), stem: str = "x") -> RunDir:
    return RunDir.create(path, root=root, stem=stem, config={"a": 1}, manifest=manifest())


def request(scene: Path, out: Path | None, steps: int = 40, **changes: object) -> TrainRequest:
    base = TrainRequest(scene, out=out, steps=steps, device="cpu", overrides=TINY, evaluate_views=1)
    return replace(base, **changes)  # type: ignore[arg-type]


class StopAt(SilentObserver):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, info: StepInfo) -> None:
        if info.step >= self.step:
            signal.raise_signal(signal.SIGINT)
