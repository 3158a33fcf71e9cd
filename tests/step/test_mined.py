"""The general mined step against its closed form, and what the objective holds itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from raymine.contracts import Draws, LossView, Reads, Rounds
from raymine.losses import ColourLoss, DistortionLoss
from raymine.mining import MiningConfig
from raymine.render import query_points, visible_samples
from raymine.step import TrainState, create_state, mined, train_step
from raymine.step.batch import RayBatch, draw_batch
from raymine.step.precision import fields_for_step
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
DATA = ball_scene()[1]
POLICIES = ("none", "prune", "hard")


def trained(policy: str, kind: str = "huber") -> TrainState:
    """A state after 40 steps. kind: of the colour loss; "shaped": l2 with distortion, and gradients that fade."""
    mining = MiningConfig(policy=policy, faint=1e-3)  # type: ignore[arg-type]
    config = replace(CONFIG, mining=mining, loss=(ColourLoss("l2" if kind == "shaped" else kind),))  # type: ignore[arg-type]
    if kind == "shaped":
        config = replace(config, loss=(*config.loss, DistortionLoss(0.1)), near_fade=3.0)
    state = create_state(config, DATA, seed=0, device=CPU)
    for _ in range(40):
        train_step(state, DATA)
    return state


def next_batch(state: TrainState) -> tuple[RayBatch, Rounds]:
    batch = draw_batch(state, DATA)
    return batch, state.sampler.sample(batch.rays, state.field, Draws(state.seed, state.step, CPU))


def parameter_gradients(state: TrainState) -> tuple[mined.BackwardResult, dict[str, Tensor]]:
    """Of the next step, without taking it: the miner is put back."""
    kept = {name: value.clone() for name, value in state.tensors().items()}
    batch, rounds = next_batch(state)
    found = mined.backward(state, batch, rounds, fields_for_step(state.config, state.field))
    grads = {name: p.grad for name, p in state.optimiser.parameters.items() if p.grad is not None}
    dense = {name: grad.to_dense() if grad.is_sparse else grad.clone() for name, grad in grads.items()}
    state.restore(kept, state.scalars())
    report = replace(found.loss, total=found.loss.total.detach())
    return found._replace(loss=report), dense


def through_judge(state: TrainState) -> tuple[mined.BackwardResult, dict[str, Tensor]]:
    """As `parameter_gradients`, with the gradients of the outputs from `judge`, whatever the policy."""
    if state.miner is not None:
        assert mined.closed_form(state) is not None
        return parameter_gradients(state)
    mining, (batch, rounds) = state.config.mining, next_batch(state)
    samples, query = rounds.samples, query_points(batch.rays, rounds.samples)
    if mining.policy == "prune":
        samples, query = visible_samples(state.field, batch.rays, samples, mining.stop, mining.faint)
    output = state.field.forward(query)
    found = mined.objective_gradients(state, mined.Objective(state, batch.rays, batch.wanted), output, samples)
    torch.autograd.backward((output.colour, output.density), (found.gradient[:, :3], found.gradient[:, 3]))
    dense = {name: p.grad.clone() for name, p in state.optimiser.parameters.items() if p.grad is not None}
    state.optimiser.clear()
    return mined.BackwardResult(found.loss, len(samples), {}), dense


@pytest.mark.parametrize("kind", ["huber", "l2", "shaped"])
@pytest.mark.parametrize("policy", POLICIES)
def test_general_step_has_the_gradients_of_the_closed_form(
    policy: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = trained(policy, kind)
    fast, expected = through_judge(state)
    monkeypatch.setattr(mined, "closed_form", lambda _: None)
    general, found = parameter_gradients(state)
    assert general.trained == fast.trained
    assert float(general.loss.total) == pytest.approx(float(fast.loss.total), rel=1e-5)
    assert float(general.loss.mse) == pytest.approx(float(fast.loss.mse), rel=1e-5)
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        assert torch.allclose(found[name], grad, rtol=1e-3, atol=2e-5 * float(grad.abs().max())), name


@pytest.mark.parametrize("kind", ["huber", "l2"])
def test_output_gradients_by_autograd_equal_judge(kind: str) -> None:
    state = trained("hard", kind)
    batch, rounds = next_batch(state)
    objective = mined.Objective(state, batch.rays, batch.wanted)
    output, _ = mined.first_pass(state.field, batch.rays, rounds.samples)
    fast = mined.objective_gradients(state, objective, output, rounds.samples)
    general = mined.by_autograd(objective, output, rounds.samples)
    limit = 2e-5 * float(fast.gradient.abs().max())
    assert torch.allclose(general.gradient, fast.gradient, rtol=1e-3, atol=limit)
    assert torch.allclose(general.size, fast.size, rtol=1e-3, atol=limit)
    assert torch.allclose(general.loss.error, fast.loss.error, rtol=1e-4, atol=1e-7)


@dataclass(frozen=True)
class Dark:
    """Every ray is to be black, by a term that holds the sampler's own parameter."""

    reads: ClassVar[Reads] = "rays"

    def __call__(self, view: LossView) -> Tensor:
        return view.parameters["sampler.gain"] * view.rendered.colour.mean()


@pytest.mark.parametrize("policy", POLICIES)
def test_parameters_held_by_the_objective_get_their_gradient(policy: str) -> None:
    state = trained(policy)
    gain = torch.nn.Parameter(torch.tensor(0.5))
    state.optimiser.parameters["sampler.gain"] = gain
    plain, expected = parameter_gradients(state)
    state.config = replace(state.config, loss=(*state.config.loss, Dark()))
    batch, rounds = next_batch(state)
    found = mined.backward(state, batch, rounds, fields_for_step(state.config, state.field))
    assert gain.grad is not None
    assert 0 < float(gain.grad) < 1
    assert float(found.loss.total.detach()) == pytest.approx(float(plain.loss.total) + 0.5 * float(gain.grad), rel=1e-4)
    assert "sampler.gain" not in expected
