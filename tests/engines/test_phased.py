"""Runs in phases: small images first, levels that fade in, exact resume, and the engine of each phase."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from raymine.contracts import StepReport
from raymine.engines import choice
from raymine.engines.phased import Phase, PhasedEngine, phases_of, reduced_data
from raymine.step import TrainData, TrainState, create_state
from raymine.step.schedule import FadeConfig, ProgressiveConfig
from support.device import requires_gpu
from support.scenes import ball_scene
from support.step import CONFIG

DATA = ball_scene()[1]
CPU = torch.device("cpu")
PHASED = replace(CONFIG, fade=FadeConfig(0.25, 0.5), progressive=ProgressiveConfig((4, 2), (0.2, 0.4)))


def fresh() -> TrainState:
    state = create_state(PHASED, DATA, seed=0, device=CPU)
    state.horizon = 30
    return state


def trained(state: TrainState, until: int) -> list[StepReport]:
    engine, reports = choice.engine_for(state, DATA), []
    engine.warm_up()
    while state.step < until:
        reports += engine.advance(until - state.step)
    return reports


def test_phases_of_a_run() -> None:
    assert phases_of(CONFIG) == [Phase(1.0)]
    expected = [Phase(0.2, 4, True), Phase(0.4, 2, True), Phase(0.5, 1, True), Phase(1.0, 1, False)]
    assert phases_of(PHASED) == expected


def test_resumed_in_any_phase_it_gives_the_same_bits() -> None:
    whole = fresh()
    expected = trained(whole, 30)
    for stop in (3, 9, 20):
        half, rest = fresh(), fresh()
        found = trained(half, stop)
        rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
        found += trained(rest, 30)
        assert found == expected
        for name, value in whole.tensors().items():
            assert torch.equal(value, rest.tensors()[name]), (stop, name)


def test_learns_through_all_phases() -> None:
    state = fresh()
    state.horizon = 200
    errors = [report.mse for report in trained(state, 200)]
    assert sum(errors[-20:]) < 0.5 * sum(errors[:20])


class _Recorder:
    """An engine that records which data it trains on, with how many levels, and how many steps it was asked for."""

    name, reason = "recorder", ""
    log: ClassVar[list[tuple[int, bool, int]]] = []

    def __init__(self, state: TrainState, data: TrainData, phase: Phase) -> None:
        self._state, self._side, self._fading = state, int(data.images.sizes[0, 0]), phase.fading
        assert tuple(state.pixels.sizes[0]) == (self._side, self._side)

    def advance(self, steps: int) -> list[StepReport]:
        assert tuple(self._state.pixels.sizes[0]) == (self._side, self._side)
        self.log.append((self._side, self._fading, steps))
        self._state.step += steps
        return [StepReport(0, 0.0, 0.0, 1, 1, 1, 0.1)] * steps

    def renderer(self) -> None: ...

    def warm_up(self) -> None: ...


def test_no_call_goes_past_a_phase() -> None:
    state = fresh()
    _Recorder.log = []
    engine = PhasedEngine(state, DATA, phases_of(PHASED), _Recorder)
    while state.step < 30:
        engine.advance(64 if state.step < 15 else 30 - state.step)
    assert _Recorder.log == [(6, True, 6), (12, True, 6), (24, True, 3), (24, False, 15)]


def test_phases_follow_a_horizon_that_changes() -> None:
    state = fresh()
    engine = PhasedEngine(state, DATA, phases_of(PHASED), _Recorder)
    state.step = 10
    assert engine.phase.factor == 2
    state.horizon = 100
    assert engine.phase.factor == 4


def test_reduced_rays_go_through_the_middle_of_blocks() -> None:
    small = reduced_data(DATA, 4)
    assert small.images.sizes.tolist() == [[6, 6]] * 8
    zero, one, two = torch.tensor([0]), torch.tensor([1]), torch.tensor([2])
    found = small.rig.rays_for_pixels(zero, one, two).directions
    corners = [
        DATA.rig.rays_for_pixels(zero, torch.tensor([x]), torch.tensor([y])).directions for x in (5, 6) for y in (9, 10)
    ]
    middle = torch.nn.functional.normalize(torch.stack(corners).mean(0), dim=1)
    assert torch.allclose(found, middle, atol=1e-4)


def test_a_fading_step_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "problem_with", lambda *_, **__: "")
    state = fresh()
    engine = choice._engine_for(state, DATA, Phase(1.0, fading=True))
    assert engine.name == "plain"
    assert engine.reason == "levels of the field fade in, and the fused kernels know no weights of levels"


def test_graph_engines_of_one_state_share_its_parameters() -> None:
    """A second engine must not move what the first one updates."""
    pytest.importorskip("triton")
    from raymine.engines.captured import CapturedTrainer
    from raymine.engines.fused.trainer import FusedTrainer
    from support.fused import CONFIG as SMALL
    from support.fused import DEVICE, data_on

    data = data_on(DEVICE)
    state = create_state(replace(SMALL, fade=FadeConfig(0.25, 0.5)), data, seed=3, device=DEVICE)
    state.rays, state.horizon = 10, 4
    first, second = CapturedTrainer(state, data), FusedTrainer(state, data)
    for trainer in (first, first, second, second):
        before = {name: value.detach().clone() for name, value in state.optimiser.parameters.items()}
        trainer.advance(1)
        for name, value in state.optimiser.parameters.items():
            assert not torch.equal(before[name], value), (type(trainer).__name__, name)
    (block,) = first._blocks
    assert block.values.data_ptr() == second.weights.data_ptr()


@requires_gpu
def test_fused_engine_takes_over_when_all_levels_are_open() -> None:
    from support.fused import CONFIG as SMALL
    from support.fused import DEVICE, data_on

    data = data_on(DEVICE)
    config = replace(SMALL, fade=PHASED.fade, progressive=PHASED.progressive)
    state = create_state(config, data, seed=0, device=DEVICE)
    state.horizon = 400
    engine = choice.engine_for(state, data)
    engine.warm_up()
    assert state.step == 0
    assert engine.name == "captured, then fused"
    assert "levels of the field fade in" in engine.reason
    reports: list[StepReport] = []
    while state.step < 400:
        reports += engine.advance(400 - state.step)
    assert all(report.finite for report in reports)
    assert sum(r.mse for r in reports[-40:]) < 0.5 * sum(r.mse for r in reports[:40])
