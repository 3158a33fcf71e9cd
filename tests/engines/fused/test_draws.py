"""Random draws of the fused step against the plain step: rays, and selected samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine.contracts import Camera
from raymine.engines import PlainEngine
from raymine.engines.fused import stages
from raymine.engines.fused.rays import DeviceRays
from raymine.engines.fused.trainer import FusedTrainer
from raymine.kernels.ngp_step import reference as ngp_reference
from raymine.kernels.philox import reference as philox_reference
from raymine.kernels.select.gpu import select
from raymine.mining import HardConfig, Miner, MiningConfig
from raymine.mining.draw import systematic
from raymine.pixels import PixelConfig, draw_uniform
from raymine.rays import CameraRig
from raymine.step import TrainConfig, create_state
from raymine.step.batch import draw_batch
from raymine.step.train import train_step
from support.device import requires_gpu
from support.fused import (
    CONFIG,
    DEVICE,
    POISSON,
    data_on,
    poison,
    trainer_for,
)
from support.scenes import SIZE, MemoryImages, ball_scene

LENSES = (
    Camera(24, 24, 30.0, 30.0, 12.0, 12.0),
    Camera(24, 24, 30.0, 28.0, 11.0, 12.5, model="opencv", distortion=(0.08, -0.03, 0.004, -0.002, 0.01)),
    Camera(24, 24, 20.0, 20.0, 12.0, 12.0, model="fisheye", distortion=(0.05, -0.01, 0.003, 0.0)),
)


@pytest.mark.parametrize("cameras", [LENSES[:1], LENSES[1:2], LENSES[2:], LENSES])
@pytest.mark.parametrize("random", [True, False])
def test_fused_step_draws_the_same_rays_as_the_plain_step(random: bool, cameras: tuple[Camera, ...]) -> None:
    check_draw(replace(CONFIG, background="random" if random else "scene"), cameras)


@pytest.mark.parametrize("rays", [1, 40])
@pytest.mark.parametrize("cells", [50, 1 << 18])
@pytest.mark.parametrize("reweight", [True, False])
def test_fused_step_draws_the_same_edge_weighted_rays_as_the_plain_step(reweight: bool, cells: int, rays: int) -> None:
    pixels = PixelConfig(policy="edges", coverage=0.37, reweight=reweight, cells=cells)
    check_draw(replace(CONFIG, pixels=pixels), LENSES[:1], rays)


def check_draw(config: TrainConfig, cameras: tuple[Camera, ...], rays: int = 40) -> None:
    scene, data = ball_scene()
    frames = [replace(frame, camera=i % len(cameras)) for i, frame in enumerate(scene.frames)]
    scene = replace(scene, cameras=cameras, frames=tuple(frames))
    data = replace(data, rig=CameraRig(scene, range(len(frames)), DEVICE))
    state = create_state(config, data, seed=3, device=DEVICE)
    state.rays = rays
    trainer = FusedTrainer(state, data)
    poison(trainer)
    trainer.draw()
    b = trainer.buffers
    batch = draw_batch(state, trainer.data)
    n = state.rays
    assert torch.allclose(b.rays[:n, :3], batch.rays.origins, atol=1e-6)
    assert torch.allclose(b.rays[:n, 3:6], batch.rays.directions, atol=1e-6)
    assert torch.equal(b.rays[:n, 6], batch.rays.near)
    assert torch.equal(b.rays[:n, 7], batch.rays.far)
    assert torch.allclose(b.wanted[:n, :3], batch.wanted.colour, atol=1e-6)
    assert torch.allclose(b.wanted[:n, 3:6], batch.wanted.background, atol=1e-6)
    assert torch.equal(b.wanted[:n, 6], batch.wanted.weight)
    harmonics = ngp_reference.harmonics(batch.rays.directions)
    assert torch.allclose(b.harmonics[:n].float(), harmonics, atol=1e-3)
    # `DeviceRays`, which the plain step uses on CUDA, draws the same batch.
    there = DeviceRays(state, data).batch(state, data)
    assert there.pixels is None
    for name in ("origins", "directions", "near", "far"):
        assert torch.allclose(getattr(there.rays, name), getattr(batch.rays, name), atol=1e-6), name
    for got, expected in zip(there.wanted, batch.wanted, strict=True):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("policy", ["uniform", "edges"])
def test_plain_step_with_device_rays_reaches_the_same_losses(policy: str) -> None:
    config = replace(CONFIG, pixels=PixelConfig(policy=policy))  # type: ignore[arg-type]
    data, losses = data_on(DEVICE), []
    for there in (False, True):
        state = create_state(config, data, seed=3, device=DEVICE)
        draw = DeviceRays(state, data).batch if there else None
        losses.append([train_step(state, data, draw).loss for _ in range(6)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@requires_gpu
def test_plain_engine_draws_rays_on_cuda_if_the_policy_allows() -> None:
    data = data_on(DEVICE)

    def draws_there(policy: str) -> bool:
        config = replace(CONFIG, pixels=PixelConfig(policy=policy))  # type: ignore[arg-type]
        return PlainEngine(create_state(config, data, seed=3, device=DEVICE), data, "")._draw is not None

    assert draws_there("edges")
    assert not draws_there("error")  # its error map needs the drawn pixels on the host


def test_masked_pixels_have_zero_weight() -> None:
    data = data_on(DEVICE)
    half = np.zeros((SIZE, SIZE), np.uint8)
    half[:, SIZE // 2 :] = 255

    class Masked(MemoryImages):
        def mask(self, index: int) -> np.ndarray | None:
            return half if index % 2 else None

    images = Masked([data.images.image(i) for i in range(len(data.rig))])
    trainer = FusedTrainer(
        create_state(CONFIG, replace(data, images=images), seed=3, device=DEVICE), replace(data, images=images)
    )
    trainer.draw()
    n = trainer.state.rays
    image, _, x = draw_uniform(torch.from_numpy(images.sizes), n, 3, 0)
    expected = ((image % 2 == 0) | (x >= SIZE // 2)).float()
    assert torch.equal(trainer.buffers.wanted[:n, 6].cpu(), expected)
    assert 0 < float(expected.mean()) < 1


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_selection_follows_the_mining_policy(policy: str) -> None:
    trainer = trainer_for(replace(CONFIG, mining=replace(POISSON, policy=policy)))  # type: ignore[arg-type]
    poison(trainer)
    trainer.draw()
    stages.march_rays(trainer.buffers, trainer.grid, trainer.n_rays)
    stages.ask_field(trainer.buffers, trainer.model, 1e-4)
    trainer.judge()
    trainer.select()
    b, n, chosen = trainer.buffers, int(trainer.buffers.n_samples), int(trainer.buffers.n_chosen)
    index, weight = b.index[:chosen].long(), b.weight[:chosen]
    assert (index.diff() > 0).all()
    if policy == "none":
        assert torch.equal(index, torch.arange(n, device=DEVICE))
        assert (weight == 1).all()
        return
    size = b.size[:n]
    assert (size[index] > 0).all()
    if policy == "prune":
        assert chosen == int((size > 0).sum())
        return
    chance = (size * trainer.control[0]).clamp_max(1)
    number = (philox_reference.words(3, 0, 6, n, DEVICE) >> 8).float() * 2.0**-24
    assert torch.equal(index, (number < chance).nonzero()[:, 0])
    assert torch.allclose(weight, 1 / chance[index])


@pytest.mark.parametrize("reweight", ["unbiased", "none"])
@pytest.mark.parametrize("draw", ["systematic", "multinomial", "topk"])
def test_selection_of_other_draws_matches_the_miner(draw: str, reweight: str) -> None:
    if (draw, reweight) == ("topk", "unbiased"):
        pytest.skip("refused by the config: what is not among the largest is never drawn")
    hard = HardConfig(draw=draw, reweight=reweight)  # type: ignore[arg-type]
    trainer = trainer_for(replace(CONFIG, mining=MiningConfig(hard=hard)))
    poison(trainer)
    trainer.draw()
    stages.march_rays(trainer.buffers, trainer.grid, trainer.n_rays)
    stages.ask_field(trainer.buffers, trainer.model, 1e-4)
    trainer.judge()
    trainer.select()
    b, n, chosen = trainer.buffers, int(trainer.buffers.n_samples), int(trainer.buffers.n_chosen)
    assert 0 < chosen < n
    index, weight = b.index[:chosen].long().cpu(), b.weight[:chosen].cpu()
    size = b.size[:n].cpu()
    expected = Miner(hard, images=len(trainer.data.rig)).choose_by_size(size, seed=3, step=0)
    if draw == "systematic":
        # Where the running total passes integers depends on the last bit of b / sum of sizes, and a GPU sums in another
        # order. So the factor is compared up to rounding, and the selection is computed from the trainer's own factor.
        factor = trainer.control[0].cpu()
        assert float(factor) == pytest.approx(float(expected.budget / size.double().sum()), rel=1e-4)
        number = (philox_reference.words(3, 0, 6, 1, torch.device("cpu"))[0] >> 8) * 2.0**-24
        taken, chance = systematic(size, factor, number)
        share = 1 / chance[taken] if reweight == "unbiased" else torch.ones_like(chance[taken])
        expected = replace(expected, index=taken.nonzero()[:, 0], weight=share)
    assert torch.equal(index, expected.index)
    assert torch.allclose(weight, expected.weight, rtol=1e-3)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 500, 2048])
def test_select_sums_counts_over_many_blocks(n: int) -> None:
    """With more than BLOCK^2 samples, counts are summed in several rounds. No test scene is large enough for that."""
    size = (torch.rand(2048, device=DEVICE) - 0.6).clamp_min(0)
    n_samples, counts, chosen, index = (
        torch.full((k,), 1 << 30, dtype=torch.int32, device=DEVICE) for k in (1, 128, 1, 2048)
    )
    weight, control = torch.full((2048,), float("nan"), device=DEVICE), torch.zeros(2, device=DEVICE)
    first = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    n_samples.fill_(n)
    for write in (False, True):
        select[(128,)](
            size, n_samples, first, control, index, index, counts, chosen, index, weight, WRITE=write, STREAM=0,
            HARD=False, UNBIASED=False, EVERY=False, BLOCK=16,
        )  # fmt: skip
    expected = size[:n].nonzero()[:, 0].int()
    assert int(chosen) == len(expected)
    assert torch.equal(index[: len(expected)], expected)
    assert (weight[: len(expected)] == 1).all()
    assert weight[len(expected) :].isnan().all()
