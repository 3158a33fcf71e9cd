"""Marching: rays by hand, the closed form of the spacing, and Numba and Triton against the reference."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.march.op import Occupancy, Spacing, march, pack_bits
from raymine.kernels.packed import Samples
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")

BOX = ((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))


def both(*arguments, backend: str = "cpu") -> tuple[Samples, Samples]:  # type: ignore[no-untyped-def]
    with dispatch.force(backend):  # type: ignore[arg-type]
        got = march(*arguments)
    with dispatch.force("reference"):
        return got, march(*arguments)


def one_ray(origin: list[float], direction: list[float], near: float = 0.0, far: float = 100.0):  # type: ignore[no-untyped-def]
    unit = torch.nn.functional.normalize(torch.tensor([direction]), dim=-1)
    return torch.tensor([origin]), unit, torch.tensor([near]), torch.tensor([far])


def single_cell(x: int, y: int, z: int, levels: int = 1, level: int = 0) -> Occupancy:
    occupied = torch.zeros(levels, 8, 8, 8, dtype=torch.bool)
    occupied[level, x, y, z] = True
    return pack_bits(occupied, *BOX)


def test_march_through_one_cell_matches_hand_computation() -> None:
    """Cell 4 of 8 covers x in 0 .. 0.25; from x = -2 that is t in 2 .. 2.25, and steps start at the box, t = 1."""
    got, expected = both(*one_ray([-2.0, 0.1, 0.1], [1.0, 0.0, 0.0]), single_cell(4, 4, 4), Spacing(0.0625))
    for result in (got, expected):
        assert result.t_start.tolist() == pytest.approx([2.0, 2.0625, 2.125, 2.1875])
        assert result.t_end.tolist() == pytest.approx([2.0625, 2.125, 2.1875, 2.25])
        assert (result.count.tolist(), result.first.tolist(), result.ray_id.tolist()) == ([4], [0], [0] * 4)


def test_near_far_and_jitter_match_hand_computation() -> None:
    ray = one_ray([-2.0, 0.1, 0.1], [1.0, 0.0, 0.0], near=2.0, far=2.2)
    got, expected = both(*ray, single_cell(4, 4, 4), Spacing(0.0625), torch.tensor([0.5]))
    for result in (got, expected):
        # Intervals start at near + half a step; the third midpoint, 2.1875, is still before far.
        assert result.t_start.tolist() == pytest.approx([2.03125, 2.09375, 2.15625])


def test_march_through_an_outer_level_matches_hand_computation() -> None:
    """Level 1 covers +-2 in cells of 0.5; its cell 7 along x is 1.5 .. 2, and only there is anything occupied."""
    got, expected = both(*one_ray([0.0, 0.1, 0.1], [1.0, 0.0, 0.0]), single_cell(7, 4, 4, 2, 1), Spacing(0.25))
    for result in (got, expected):
        assert result.t_start.tolist() == pytest.approx([1.5, 1.75])


@pytest.mark.parametrize(
    "ray",
    [
        one_ray([0.0, 0.0, 5.0], [0.0, 0.0, 1.0]),  # looks away
        one_ray([5.0, 0.0, 0.0], [0.0, 1.0, 0.0]),  # parallel to a face, outside
        one_ray([-2.0, 0.1, 0.1], [1.0, 0.0, 0.0], near=3.0, far=2.0),  # empty bounds
    ],
)
def test_rays_that_miss_get_no_samples(ray) -> None:  # type: ignore[no-untyped-def]
    full = pack_bits(torch.ones(1, 8, 8, 8, dtype=torch.bool), *BOX)
    for result in both(*ray, full, Spacing(0.1)):
        assert result.count.tolist() == [0]
        assert len(result.t_start) == 0


def random_grid(levels: int, res: int, share: float) -> Occupancy:
    occupied = torch.rand(levels, res, res, res) < share
    occupied[:, : res // 2, : res // 2] = False  # large empty blocks, so that skipping is exercised
    return pack_bits(occupied, (-1.0, -1.0, -1.5), (1.0, 1.25, 1.0))


# Directions parallel to a face divide by zero, which is intended; the interpreter warns about it.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("backend", "n"), [("cpu", 0), ("cpu", 1), ("cpu", 63), ("cpu", 400), ("gpu", 0), ("gpu", 1), ("gpu", 40)]
)
@pytest.mark.parametrize("levels", [1, 2, 4])
@pytest.mark.parametrize("spacing", [Spacing(0.02), Spacing(0.02, cone=0.01), Spacing(0.02, 0.05, 0.01)], ids=str)
def test_kernels_match_reference(backend: str, n: int, levels: int, spacing: Spacing) -> None:
    grid = random_grid(levels, 16, 0.03)
    origins = torch.randn(n, 3) * 1.5
    directions = torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)
    if n > 3:
        directions[:3] = torch.eye(3)  # axis-aligned
    near, far, jitter = torch.full((n,), 0.05), torch.rand(n) * 12, torch.rand(n)
    arguments = (origins, directions, near, far, grid, spacing, jitter)
    if backend == "gpu":
        pytest.importorskip("triton")
        grid = replace(grid, bits=grid.bits.to(TRITON_DEVICE), blocks=grid.blocks.to(TRITON_DEVICE))
        origins, directions, near, far, jitter = (x.to(TRITON_DEVICE) for x in (origins, directions, near, far, jitter))
        arguments = (origins, directions, near, far, grid, spacing, jitter)
    got, expected = both(*arguments, backend=backend)
    # Rounding may put a midpoint near a cell face on either side of it: a few samples in a million.
    assert int((got.count != expected.count).sum()) <= n // 100
    assert abs(len(got.t_start) - len(expected.t_start)) <= n // 100
    same = got.count == expected.count
    for r in same.nonzero()[:, 0].tolist():
        a = got.t_start[got.first[r] : got.first[r] + got.count[r]]
        b = expected.t_start[expected.first[r] : expected.first[r] + expected.count[r]]
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_far_and_non_finite_rays_give_consistent_samples(backend: str, levels: int) -> None:
    """Rounding moves distant rays by many cells, so only counts, order and memory safety are checked."""
    if backend == "gpu":
        pytest.importorskip("triton")
    device = TRITON_DEVICE if backend == "gpu" else "cpu"
    grid = random_grid(levels, 16, 1.0)
    grid = replace(grid, bits=grid.bits.to(device), blocks=grid.blocks.to(device))
    directions = torch.nn.functional.normalize(torch.randn(12, 3), dim=-1)
    origins = directions * -torch.tensor([1e3, 1e6, 1e8])[:, None].repeat(4, 1)
    directions[9], origins[10], origins[11] = float("nan"), float("inf"), float("nan")
    near, far, jitter = torch.zeros(12), torch.full((12,), 2e8), torch.rand(12)
    arguments = (part.to(device) for part in (origins, directions, near, far))
    with dispatch.force(backend):  # type: ignore[arg-type]
        got = march(*arguments, grid, Spacing(0.02, 1e3), jitter.to(device))
    assert int(got.count.sum()) == len(got.t_start) == len(got.ray_id)
    assert not got.count[9:].any()
    assert (got.t_end >= got.t_start).all()
    assert int(got.count[0]) > 0


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 0.1), st.floats(1.0, 50.0), st.sampled_from([0.0, 0.001, 0.01, 0.1]), st.floats(0.0, 1000.0))
def test_distance_at_inverts_count_at(shortest: float, ratio: float, cone: float, t: float) -> None:
    spacing = Spacing(shortest, shortest * ratio, cone)
    at = torch.tensor([t], dtype=torch.float64)
    assert spacing.distance_at(spacing.count_at(at)).item() == pytest.approx(t, rel=1e-9, abs=1e-12)


def test_step_length_grows_with_distance_between_its_limits() -> None:
    spacing = Spacing(0.01, 0.1, 0.01)
    t = torch.tensor([0.5, 5.0, 50.0], dtype=torch.float64)
    u = spacing.count_at(t)
    lengths = spacing.distance_at(u + 0.5) - spacing.distance_at(u - 0.5)
    assert lengths.tolist() == pytest.approx([0.01, 0.05, 0.1], rel=1e-4)


def test_pack_sets_hand_computed_bits_and_blocks() -> None:
    occupied = torch.zeros(1, 8, 8, 8, dtype=torch.bool)
    occupied[0, 0, 0, 3] = occupied[0, 7, 7, 7] = True
    grid = pack_bits(occupied, *BOX)
    assert grid.bits[0, 0].item() == 8
    assert grid.bits[0, 63].item() == 128
    assert int(grid.bits.sum()) == 136
    assert grid.blocks.tolist() == [[1]]


def test_invalid_arguments_raise_config_error() -> None:
    grid = single_cell(0, 0, 0)
    with pytest.raises(ConfigError, match=r"`near` must have shape \[2\], got \[3\]"):
        march(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3), torch.zeros(2), grid, Spacing())
    with pytest.raises(ConfigError, match=r"0 < shortest <= longest, got -1\.0"):
        Spacing(-1.0)
    with pytest.raises(ConfigError, match="low < high"):
        pack_bits(torch.zeros(1, 8, 8, 8, dtype=torch.bool), (0, 0, 0), (0, 1, 1))
    assert math.isinf(Spacing().knots[0])
