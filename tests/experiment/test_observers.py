"""Observers that are called between bursts of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raymine import checkpoint
from raymine.config import Every, Schedule
from raymine.contracts import Renderer
from raymine.experiment import LiveRun, Observers, SilentObserver, load_run, train, work
from raymine.metrics_log import read_rows
from raymine.rays import rays_for_camera
from raymine.scenes import load_scene
from raymine.scenes.bank import open_bank
from raymine.step import TrainData, TrainState
from support import fake_training
from support.disc_scene import write_scene
from support.fake_training import Options, assert_same_state, deterministic
from support.runs import request


class Watcher(SilentObserver):
    """Records steps and elapsed times, and renders a picture after the steps in `at`."""

    def __init__(self, scene: Path, at: tuple[int, ...]) -> None:
        loaded = load_scene(scene)
        frame = loaded.frames[0]
        self.rays = rays_for_camera(loaded.cameras[frame.camera], frame.pose, loaded.bounds)
        self.at = at
        self.steps: list[int] = []
        self.elapsed: list[float] = []
        self.pictures: list[torch.Tensor] = []
        self.hard: list[np.ndarray] = []

    def on_burst(self, live: LiveRun) -> None:
        self.steps.append(live.step)
        self.elapsed.append(live.elapsed)
        if live.step in self.at:
            self.pictures.append(live.renderer().render(self.rays, torch.ones(3)).colour.clone())
            hard = live.hard_view(1, 8, unwanted=lambda: False)
            assert hard is not None
            self.hard.append(hard.hardness)
            assert live.hard_view(1, 8, unwanted=lambda: True) is None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps at which the engine was asked for a renderer."""
    steps: list[int] = []
    real = work.engine_for

    def counting(state: TrainState, data: TrainData) -> object:
        engine = real(state, data)
        make = engine.renderer

        def renderer() -> Renderer:
            steps.append(state.step)
            return make()

        monkeypatch.setattr(engine, "renderer", renderer)
        return engine

    monkeypatch.setattr(work, "engine_for", counting)
    return steps


def test_observer_can_render_during_a_run_without_changing_it(tmp_path: Path, made: list[int]) -> None:
    scene = write_scene(tmp_path / "scene")
    watcher = Watcher(scene, at=(20, 40))
    train(request(scene, tmp_path / "seen", evaluate_views=0), observer=Observers([SilentObserver(), watcher]))
    assert made == [20, 40]
    train(request(scene, tmp_path / "unseen", evaluate_views=0))
    assert made == [20, 40], "without interest no renderer is made"
    assert watcher.steps == list(range(1, 41))
    assert watcher.elapsed == sorted(watcher.elapsed)
    first, second = watcher.pictures
    assert first.shape == (64, 3)
    assert torch.isfinite(first).all()
    assert not torch.equal(first, second), "the picture must show what has been learnt since"
    assert [hard.shape for hard in watcher.hard] == [(8, 8), (8, 8)]
    assert (watcher.hard[0] != watcher.hard[1]).any()
    loaded = load_run(tmp_path / "seen", device="cpu")
    with open_bank(loaded.scene, loaded.trained) as images:
        later = loaded.hard_view(images, loaded.trained, 1, 8)
    assert later is not None
    np.testing.assert_allclose(later.hardness, watcher.hard[1], rtol=1e-4, atol=1e-7)
    a, b = (checkpoint.load_latest(tmp_path / name / "checkpoints") for name in ("seen", "unseen"))
    assert a is not None
    assert b is not None
    assert a.checkpoint.scalars == b.checkpoint.scalars
    assert all(torch.equal(value, b.checkpoint.tensors[name]) for name, value in a.checkpoint.tensors.items())
    rows = [deterministic(read_rows(tmp_path / name / "metrics.jsonl")) for name in ("seen", "unseen")]
    assert rows[0] == rows[1]


class Slow(SilentObserver):
    """Spends a minute of a fake clock in every call."""

    def __init__(self, look: bool) -> None:
        self.time, self.look = 0.0, look

    def now(self) -> float:
        return self.time

    def on_burst(self, live: LiveRun) -> None:
        if self.look:
            live.renderer()
        self.time += 60.0


@pytest.mark.parametrize("look", [False, True])
def test_time_spent_in_an_observer_is_not_training_time(tmp_path: Path, look: bool) -> None:
    slow = Slow(look)

    def step(_: int) -> bool:
        # Called once per step, during the step.
        slow.time += 1.0
        return False

    options = Options(steps=None, max_seconds=30.0, now=slow.now, poison=step, schedule=Schedule(checkpoint=Every()))
    seen, state, loop = fake_training.train(tmp_path / "seen", options, slow)
    assert (seen.step, seen.elapsed) == (30, 30.0)
    slow.time = 0.0
    _, unseen, other = fake_training.train(tmp_path / "unseen", options)
    assert loop.horizons == other.horizons
    assert_same_state(state, unseen)
