"""The network that moves points of a dynamic field."""

from __future__ import annotations

import pytest
import torch

from raymine.errors import ConfigError
from raymine.fields.motion import Motion, MotionConfig, MotionEncoding
from raymine.kernels.hash_grid.op import GridSpec
from raymine.step.precision import amp_problem

GRID = GridSpec(levels=3, features=2, log2_entries=9, base=4, finest=16)


def small(encoding: MotionEncoding, **changes: object) -> MotionConfig:
    return MotionConfig(encoding, width=16, depth=2, features=5, grid=GRID, **changes)  # type: ignore[arg-type]


def points(n: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, generator=generator), torch.rand(n, generator=generator)


@pytest.mark.parametrize("encoding", ["frequencies", "grids"])
def test_motion_starts_near_zero_and_follows_the_seed(encoding: MotionEncoding) -> None:
    cube, time = points()
    first, again, other = (Motion(small(encoding), seed, 7, "cpu") for seed in (1, 1, 2))
    moved = first(cube, time)
    assert moved.features.shape == (50, 5)
    assert 0 < float((moved.cube - cube).detach().abs().max()) < 0.05
    assert torch.equal(moved.cube, again(cube, time).cube)
    assert not torch.equal(moved.cube, other(cube, time).cube)
    assert len({tuple(layer.shape) for layer in first.layers}) == 3, "inputs, hidden, outputs"


@pytest.mark.parametrize("encoding", ["frequencies", "grids"])
def test_motion_depends_on_place_and_time(encoding: MotionEncoding) -> None:
    cube, time = points()
    motion = Motion(small(encoding), 0, 1, "cpu")
    offset = motion(cube, time).cube - cube
    assert not torch.allclose(offset, motion(cube, 1 - time).cube - cube, atol=1e-5)
    assert not torch.allclose(offset, motion(1 - cube, time).cube - (1 - cube), atol=1e-5)


def test_offsets_are_float32_under_autocast() -> None:
    problem = amp_problem("bf16", torch.device("cpu"))
    if problem:
        pytest.skip(problem)
    cube, time = points()
    motion = Motion(small("frequencies"), 0, 1, "cpu")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        moved = motion(cube, time)
    assert moved.cube.dtype is torch.float32
    assert moved.features.dtype is torch.float32
    exact = (motion(cube, time).cube - cube).detach()
    assert not torch.equal(moved.cube - cube, exact), "hidden layers are rounded"
    assert float((moved.cube - cube - exact).norm() / exact.norm()) < 0.02


def test_time_share_makes_motion_slower_in_time() -> None:
    """With half of the cells, motion at t is that with all of them at (t + 0.5) / 2."""
    cube, time = points()
    whole, half = (Motion(small("grids", time_share=share), 0, 1, "cpu") for share in (1.0, 0.5))
    assert torch.allclose(half(cube, time).features, whole(cube, 0.5 * (time + 0.5)).features, atol=1e-6)
    assert not torch.allclose(half(cube, time).features, whole(cube, time).features, atol=1e-4)


def test_groups_hold_every_parameter_with_the_rate_of_the_config() -> None:
    motion = Motion(small("grids", rate=0.25), 0, 1, "cpu")
    groups = motion.groups("motion.")
    assert [group.rate for group in groups] == [0.25, 0.25]
    assert [group.sparse for group in groups] == [False, True]
    named = {name: value for group in groups for name, value in group.parameters.items()}
    assert named.keys() == {f"motion.{name}" for name, _ in motion.named_parameters()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoding": "planes"}, "`encoding` must be one of frequencies, grids, got 'planes'"),
        ({"width": 4}, "width 8 .. 512, depth 1 .. 12 and 0 .. 64 features; got 4, 4 and 16"),
        ({"position_frequencies": 20}, "must be in 0 .. 12, got 20 of positions and 6 of times"),
        ({"rate": 0.0}, "rate > 0 and 0 < time_share <= 1, got 0.0 and 0.5"),
        ({"time_share": 2.0}, "rate > 0 and 0 < time_share <= 1"),
        ({"rate": float("nan")}, "`rate` of MotionConfig must be a finite number"),
    ],
)
def test_config_refuses_nonsense(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MotionConfig(**changes)  # type: ignore[arg-type]
