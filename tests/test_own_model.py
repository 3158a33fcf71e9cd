"""A model that raymine has never seen: its own field, sampler and loss term, through the whole trainer.

What is here is all that its author writes: one class per part and one term. Nothing is registered anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raymine
from raymine import checkpoint
from raymine.contracts import (
    Bounds,
    Draws,
    Field,
    FieldInput,
    FieldOutput,
    LossView,
    ParameterView,
    Rays,
    Reads,
    Rounds,
    Samples,
    Scene,
)
from raymine.experiment import TrainRequest, train
from raymine.kernels.activations import Activation, Activations
from raymine.kernels.packed import pack_counts
from raymine.kernels.philox.op import Stream, uniform
from raymine.losses import ColourLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.recipes.policies import policy_overrides
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig
from support.device import requires_gpu
from support.disc_scene import write_scene_of_eight
from support.runs import StopAt


@dataclass(frozen=True)
class VoxelConfig:
    side: int = 8

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> VoxelField:
        return VoxelField(self, bounds, seed).to(device)


class VoxelField(nn.Module):
    """Four numbers a voxel, interpolated; softplus instead of the exponential. `asked` counts calls and is saved."""

    activations = Activations(Activation("softplus"), Activation("sigmoid"))

    def __init__(self, config: VoxelConfig, bounds: Bounds, seed: int) -> None:
        super().__init__()
        first = uniform(seed, 0, Stream.INITIAL, (1, 4, config.side, config.side, config.side))
        self.voxels = nn.Parameter(first * 0.2 - 0.1)
        self.register_buffer("reach", torch.tensor(max(bounds.high)), persistent=False)
        self.register_buffer("asked", torch.zeros((), dtype=torch.int64))

    def forward(self, query: FieldInput) -> FieldOutput:
        self.asked += 1
        at = (query.positions / self.reach)[None, :, None, None, :]
        found = nn.functional.grid_sample(self.voxels, at, align_corners=True)[0, :, :, 0, 0]
        return FieldOutput(found[:3].T, found[3])

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        return self.forward(FieldInput(positions, positions)).density


@dataclass(frozen=True)
class EvenConfig:
    count: int = 24

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> EvenSampler:
        return EvenSampler(self)


class EvenSampler:
    """The same number of equal steps on every ray between 2 and 6 units."""

    def __init__(self, config: EvenConfig) -> None:
        self.config = config

    def sample(self, rays: Rays, field: Field, draws: Draws | None = None) -> Rounds:
        n, device = self.config.count, rays.origins.device
        shift = 0.0 if draws is None else draws.uniform(Stream.JITTER, (len(rays), 1))
        start = 2 + (torch.arange(n, device=device) + shift) * (4 / n)
        start = start.expand(len(rays), n).reshape(-1)
        pack = pack_counts(torch.full((len(rays),), n, device=device))
        return Rounds(Samples(start, start + 4 / n, pack.ray_id(len(start)), *pack))


@dataclass(frozen=True)
class Opaque:
    """Rays are to be either opaque or empty."""

    reads: ClassVar[Reads] = "samples"
    weight: float = 1e-3

    def __call__(self, view: LossView) -> Tensor:
        opacity = view.rendered.opacity
        return self.weight * (opacity * (1 - opacity)).mean()


@dataclass(frozen=True)
class Small:
    """Parameters are to be small."""

    reads: ClassVar[Reads] = "parameters"
    weight: float = 1e-4

    def __call__(self, view: ParameterView) -> Tensor:
        return self.weight * view.parameters["field.voxels"].square().mean()


def own_recipe(scene: Scene, device: str) -> TrainConfig:
    return TrainConfig(
        field=VoxelConfig(),
        sampler=EvenConfig(),
        loss=(ColourLoss("l2"), Opaque(), Small()),
        batch=BatchConfig(samples=1 << 11, max_rays=256),
        optimiser=OptimiserConfig(lr=0.2, warmup=5, average=0.1),
        mining=MiningConfig(hard=HardConfig(draw="systematic")),
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene_of_eight(tmp_path_factory.mktemp("own") / "scene")


def saved(run: raymine.Run) -> dict[str, Tensor]:
    latest = checkpoint.load_latest(Path(run.path) / "checkpoints")
    assert latest is not None
    return latest.checkpoint.tensors


def train_save_resume_and_render(scene: Path, folder: Path, policy: str, device: str) -> None:
    def trained(out: str, resume: bool = False) -> raymine.Run:
        options = {"mining": policy, "device": device, "resume": resume, "progress": False}
        return raymine.train(scene, own_recipe, steps=200, out=folder / out, **options)

    whole = trained("whole")
    request = TrainRequest(scene, own_recipe, steps=200, out=folder / "cut", device=device)
    stopped = train(replace(request, overrides=policy_overrides(policy)), observer=StopAt(16))
    assert (stopped.status, stopped.step) == ("stopped", 16)
    resumed = trained("cut", resume=True)
    expected, found = saved(whole), saved(resumed)
    assert {"field.voxels", "field.asked", "adam.second.field.voxels", "average.voxels"} <= expected.keys()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    frame = whole.scene.frames[-1]
    view = raymine.load(folder / "whole", device=device).render(frame.camera, frame.pose, background=(1.0, 1.0, 1.0))
    middle, corner = view.colour[8, 8], view.colour[0, 0]
    assert np.abs(corner - 1).max() < 0.15, "nothing but background in a corner"
    assert middle[0] > middle[1], "the disc is red"
    assert view.opacity[8, 8] > 0.7
    inside, outside = whole.density([[0.0, 0.0, 0.0], [1.4, 1.4, 1.4]]).tolist()
    assert inside > 3 * outside


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_own_field_sampler_and_loss_term_train_resume_and_render(scene: Path, tmp_path: Path, policy: str) -> None:
    train_save_resume_and_render(scene, tmp_path, policy, "cpu")


@requires_gpu
@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_own_field_sampler_and_loss_term_train_on_cuda(scene: Path, tmp_path: Path, policy: str) -> None:
    # grid_sample adds up its gradient in no fixed order on CUDA, so bits are compared on a CPU only.
    options = {"mining": policy, "device": "cuda", "progress": False}
    run = raymine.train(scene, own_recipe, steps=200, out=tmp_path / "run", **options)
    assert run.evaluate().psnr > 14
    assert raymine.train(scene, own_recipe, steps=210, out=tmp_path / "run", resume=True, **options).step == 210


def test_every_loss_term_is_minimised(scene: Path, tmp_path: Path) -> None:
    """Without its term the regularised quantity ends higher, under a policy with and one without a first pass."""

    def final(policy: str, *terms: object) -> Tensor:
        config = replace(own_recipe(None, "cpu"), loss=(ColourLoss("l2"), *terms))  # type: ignore[arg-type]
        out = tmp_path / f"{policy}-{len(terms)}"
        run = raymine.train(scene, config, steps=40, mining=policy, device="cpu", out=out, progress=False)
        return saved(run)["field.voxels"].square().mean()

    for policy in ("none", "hard"):
        assert final(policy, Small(1.0)) < 0.8 * final(policy)
