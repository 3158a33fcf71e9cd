"""Mining on CUDA: no synchronization, the same draws as on the CPU, and a mined run that learns."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from raymine.mining import HardConfig, Miner
from raymine.rays import CameraRig
from raymine.step import create_state, train_step
from support.device import forbidden_to_wait, requires_gpu
from support.scenes import ball_scene
from support.step import CONFIG

pytestmark = requires_gpu
DRAWS = [("poisson", "unbiased"), ("systematic", "unbiased"), ("multinomial", "unbiased"), ("topk", "none")]


def gradients(n: int = 20_000) -> torch.Tensor:
    """Heavy-tailed gradients; a third of them are 0."""
    size = torch.exp(2 * torch.randn(n)) * (torch.rand(n) > 0.33)
    return torch.nn.functional.normalize(torch.randn(n, 4), dim=1) * size[:, None]


@pytest.mark.parametrize(("draw", "reweight"), DRAWS)
def test_choosing_never_waits_for_the_device(draw: str, reweight: str) -> None:
    miner = Miner(HardConfig(draw=draw, reweight=reweight), images=10, device="cuda")  # type: ignore[arg-type]
    gradient = gradients().cuda()
    miner.choose(gradient, step=0)
    with forbidden_to_wait():
        for step in range(1, 40):
            chosen = miner.choose(gradient, step=step)
    assert int(miner.tensors()["overflow"]) == 0
    live = chosen.weight > 0
    assert 0 < int(live.sum()) <= 0.5 * len(gradient)
    # The capacity shrinks from the initial half of all samples to 1.5 times the number chosen.
    assert len(live) < 2 * int(live.sum()) + 600
    assert (gradient[chosen.index[live]].norm(dim=1) > 0).all()
    assert chosen.index[live].unique().numel() == int(live.sum())


@pytest.mark.parametrize(("draw", "reweight"), DRAWS)
def test_cpu_and_cuda_draw_the_same_samples(draw: str, reweight: str) -> None:
    config = HardConfig(draw=draw, reweight=reweight)  # type: ignore[arg-type]
    here, there = Miner(config, images=10), Miner(config, images=10, device="cuda")
    for step in range(12):
        gradient = gradients(5000)
        a, b = here.choose(gradient, step=step), there.choose(gradient.cuda(), step=step)
        live = b.weight > 0
        ours, theirs = set(a.index.tolist()), set(b.index[live].tolist())
        # Sums in another order round probabilities differently, which occasionally changes a sample.
        assert len(ours ^ theirs) <= max(2, len(ours) // 200)
        assert float(a.budget) == pytest.approx(float(b.budget), rel=1e-4)


def test_a_mined_run_learns_on_cuda() -> None:
    scene, data = ball_scene()
    data = dataclasses.replace(data, rig=CameraRig(scene, range(8), "cuda"))
    config = dataclasses.replace(CONFIG, mining=dataclasses.replace(CONFIG.mining, policy="hard"))
    state = create_state(config, data, seed=0, device=torch.device("cuda"))
    state.horizon = 300
    reports = [train_step(state, data) for _ in range(300)]
    start, end = reports[0].mse, sum(report.mse for report in reports[-10:]) / 10
    assert -10 * math.log10(end) > -10 * math.log10(start) + 8
    assert all(report.finite for report in reports)
