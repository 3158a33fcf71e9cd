"""Preparing a run: how often it is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.config import Every
from raymine.experiment import TrainRequest
from raymine.experiment.prepare import prepare
from support.disc_scene import write_scene_of_eight


@pytest.mark.parametrize(("seconds", "every"), [(10.0, 10.0), (20.0, 5.0), (100.0, 25.0)])
def test_short_runs_on_a_cpu_are_evaluated_at_their_end_only(tmp_path: Path, seconds: float, every: float) -> None:
    scene = write_scene_of_eight(tmp_path / "scene")
    prepared = prepare(TrainRequest(scene, max_seconds=seconds, device="cpu"))
    assert prepared.config.schedule.evaluate == Every(seconds=every)
