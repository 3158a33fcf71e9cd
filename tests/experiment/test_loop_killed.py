"""A run killed at ten random moments ends exactly like one that was never interrupted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raymine import checkpoint
from raymine.experiment import TrainRequest
from raymine.experiment import train as train_run
from raymine.files import is_temp
from raymine.metrics_log import read_rows
from support.disc_scene import write_scene
from support.fake_training import FakeState, assert_same_state, deterministic, train
from support.killed_run import KILLS, TINY, options
from support.paths import environment

STEPS = 400


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="needs fork, which this system lacks")
def test_fake_run_killed_ten_times_equals_uninterrupted_run(tmp_path: Path) -> None:
    _, whole, _ = train(tmp_path / "whole", options(STEPS))
    command = [sys.executable, "-m", "support.killed_run", str(tmp_path / "killed"), str(STEPS), "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= KILLS - 2, "most kills must hit a living run, or the test shows nothing"
    latest = checkpoint.load_latest(tmp_path / "killed/checkpoints")
    assert latest is not None
    assert latest.problems == ()
    survivor = FakeState()
    survivor.restore(latest.checkpoint.tensors, latest.checkpoint.scalars)
    assert survivor.step == STEPS
    assert_same_state(whole, survivor)
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "killed")]
    assert deterministic(rows[0]) == deterministic(rows[1])
    assert checkpoint.read_best(tmp_path / "whole/checkpoints") == checkpoint.read_best(tmp_path / "killed/checkpoints")
    assert not [p for p in (tmp_path / "killed").rglob("*") if is_temp(p)]


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="needs fork, which this system lacks")
def test_real_run_killed_ten_times_equals_uninterrupted_run(tmp_path: Path) -> None:
    """Kills fall before, during and after loading, compiling, training, evaluating and saving."""
    scene, steps = write_scene(tmp_path / "scene"), 1200
    request = TrainRequest(scene, out=tmp_path / "whole", steps=steps, device="cpu", overrides=TINY, evaluate_views=1)
    train_run(request)
    command = [sys.executable, "-m", "support.killed_run", str(tmp_path / "killed"), str(steps), "3", str(scene)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3, "several kills must hit a living run, or the test shows nothing"
    whole, killed = (checkpoint.load_latest(tmp_path / name / "checkpoints") for name in ("whole", "killed"))
    assert whole is not None
    assert killed is not None
    assert whole.checkpoint.step == steps
    assert whole.checkpoint.scalars == killed.checkpoint.scalars
    for name, value in whole.checkpoint.tensors.items():
        assert torch.equal(value, killed.checkpoint.tensors[name]), name
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "killed")]
    assert deterministic(rows[0]) == deterministic(rows[1])
