"""`ray_marching` of nerfacc 0.3: rays by hand, a step-by-step march as the reference, filters, refusals."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine.compat import nerfacc_v02, nerfacc_v03
from raymine.compat.nerfacc_v03 import ContractionType, OccupancyGrid, contract, ray_marching
from raymine.errors import ConfigError
from support.device import forbidden_to_wait, requires_gpu

UNIT = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def one_ray(x: float = -1.0) -> tuple[Tensor, Tensor]:
    """A ray along x through the middle of the unit cube."""
    return torch.tensor([[x, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]])


def random_rays(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rays from around the unit cube to points in it."""
    rng = torch.Generator().manual_seed(seed)
    origins = torch.rand(n, 3, generator=rng) * 3 - 1
    directions = torch.rand(n, 3, generator=rng) - origins
    return origins, directions / directions.norm(dim=-1, keepdim=True)


def grid_of(cells: Tensor, kind: ContractionType = ContractionType.AABB, box: Any = UNIT) -> OccupancyGrid:
    grid = OccupancyGrid(box, list(cells.shape), kind)
    grid._binary = cells
    return grid


def march_by_steps(o: Tensor, d: Tensor, near: float, far: float, grid: OccupancyGrid, step: float, cone: float) -> Any:
    """Every step of every ray, one after the other, in float64."""
    low, high = grid.roi_aabb[:3].double(), grid.roi_aabb[3:].double()
    sides = torch.tensor(grid.binary.shape)
    found: list[tuple[int, float, float]] = []
    for ray in range(len(o)):
        start = near
        while True:
            end = start + max(step, cone * start)
            middle = (start + end) / 2
            if middle >= far:
                break
            point = o[ray].double() + middle * d[ray].double()
            bounded = grid.contraction_type is ContractionType.AABB
            if not bounded or bool(((point >= low) & (point <= high)).all()):
                unit = contract(point, torch.cat((low, high)), grid.contraction_type)
                cell = (unit * sides).long().clamp_min(0).minimum(sides - 1)
                if bool(grid.binary[tuple(cell)]):
                    found.append((ray, start, end))
            start = end
    return found


def test_signature_equals_that_of_nerfacc() -> None:
    expected = (
        "rays_o, rays_d, t_min=None, t_max=None, scene_aabb=None, grid=None, sigma_fn=None, alpha_fn=None, "
        "early_stop_eps=0.0001, alpha_thre=0.0, near_plane=None, far_plane=None, render_step_size=0.001, "
        "stratified=False, cone_angle=0.0"
    )
    for function in (ray_marching, nerfacc_v02.ray_marching):
        parameters = inspect.signature(function).parameters.values()
        assert ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters) == expected


def test_a_ray_through_a_box_has_one_sample_per_step() -> None:
    ray, start, end = ray_marching(*one_ray(), scene_aabb=torch.tensor(UNIT), render_step_size=0.25)
    assert ray.tolist() == [0, 0, 0, 0]
    assert ray.dtype == torch.int64
    torch.testing.assert_close(start, torch.tensor([[1.0], [1.25], [1.5], [1.75]]))
    torch.testing.assert_close(end, start + 0.25)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"near_plane": 0.5, "far_plane": 1.5}, [0.5, 1.0]),
        ({"t_min": torch.tensor([0.0]), "t_max": torch.tensor([1.0])}, [0.0, 0.5]),
        ({"t_min": torch.tensor([0.0]), "t_max": torch.tensor([9.0]), "far_plane": 1.0}, [0.0, 0.5]),
        # One of the two alone is ignored, as in nerfacc.
        ({"t_min": torch.tensor([1.6]), "scene_aabb": torch.tensor(UNIT)}, [1.0, 1.5]),
        ({"scene_aabb": torch.tensor([0.0, 5.0, 0.0, 1.0, 6.0, 1.0])}, []),
        ({"scene_aabb": torch.tensor([-9.0, 0.0, 0.0, -8.0, 1.0, 1.0])}, []),
        ({"near_plane": 3.0, "far_plane": 2.0}, []),
    ],
    ids=["planes", "bounds of the ray", "clipped", "one bound", "a box beside", "a box behind", "nothing between"],
)
def test_bounds_of_a_ray(bounds: dict[str, Any], expected: list[float]) -> None:
    _, start, _ = ray_marching(*one_ray(), render_step_size=0.5, **bounds)
    torch.testing.assert_close(start[:, 0], torch.tensor(expected))


def test_only_steps_in_occupied_cells_become_samples() -> None:
    cells = torch.zeros(4, 1, 1, dtype=torch.bool)
    cells[[0, 3]] = True
    _, start, _ = ray_marching(*one_ray(), grid=grid_of(cells), far_plane=5.0, render_step_size=0.125)
    torch.testing.assert_close(start[:, 0], torch.tensor([1.0, 1.125, 1.75, 1.875]))


@pytest.mark.parametrize(
    ("kind", "cone"),
    [
        (ContractionType.AABB, 0.0),
        (ContractionType.UN_BOUNDED_TANH, 0.0),
        (ContractionType.UN_BOUNDED_TANH, 0.05),
        (ContractionType.UN_BOUNDED_SPHERE, 0.0),
        (ContractionType.UN_BOUNDED_SPHERE, 0.05),
    ],
)
def test_samples_equal_those_of_a_march_step_by_step(kind: ContractionType, cone: float) -> None:
    cells = torch.rand(5, 4, 6, generator=torch.Generator().manual_seed(1)) > 0.5
    grid = grid_of(cells, kind, [-0.5, 0.0, -0.25, 1.0, 1.0, 1.5])
    o, d = random_rays(40)
    ray, start, end = ray_marching(
        o, d, grid=grid, near_plane=0.1, far_plane=4.0, render_step_size=0.02, cone_angle=cone
    )
    expected = march_by_steps(o, d, 0.1, 4.0, grid, 0.02, cone)
    assert len(expected) > 500
    got = {(r, round(t, 3)) for r, t in zip(ray.tolist(), start[:, 0].tolist(), strict=True)}
    wanted = {(r, round(t, 3)) for r, t, _ in expected}
    # A midpoint within rounding of a face may belong to either cell.
    assert len(got ^ wanted) <= len(wanted) // 200
    assert bool((end > start).all())


def test_steps_of_a_cone_grow_in_a_bounded_grid_and_stay_in_its_occupied_cells() -> None:
    cells = torch.rand(5, 4, 6, generator=torch.Generator().manual_seed(1)) > 0.5
    grid = grid_of(cells)
    o, d = random_rays(200)
    ray, start, end = ray_marching(o, d, grid=grid, render_step_size=0.02, cone_angle=0.05)
    length = (end - start)[:, 0]
    torch.testing.assert_close(length, (start[:, 0] * 0.05).clamp_min(0.02), rtol=1e-4, atol=1e-6)
    points = o[ray] + (start + end) / 2 * d[ray]
    assert grid.query_occ(points).float().mean() > 0.999


def test_without_a_grid_steps_fill_the_range() -> None:
    o, d = random_rays(3)
    ray, start, _ = ray_marching(o, d, near_plane=0.1, far_plane=1.0, render_step_size=1e-2)
    assert ray.bincount().tolist() == [90, 90, 90]
    torch.testing.assert_close(start.view(3, 90), (0.1 + 0.01 * torch.arange(90)).expand(3, 90))


def test_stratified_samples_are_shifted_by_less_than_a_step() -> None:
    o, d = random_rays(50)
    torch.manual_seed(3)
    ray, start, _ = ray_marching(o, d, near_plane=0.0, far_plane=1.0, render_step_size=0.1, stratified=True)
    torch.manual_seed(3)
    shift = torch.rand(50) * 0.1
    first = torch.full((50,), torch.inf).scatter_reduce(0, ray, start[:, 0], "amin")
    torch.testing.assert_close(first, shift)


@pytest.mark.parametrize("version", ["0.3", "0.2"])
@pytest.mark.parametrize("alpha", [False, True], ids=["sigma_fn", "alpha_fn"])
def test_hidden_and_faint_samples_are_left_out(version: str, alpha: bool) -> None:
    """Opacities 0.05, 0.5, 0.9, 0.9, 0.5 along one ray. Transmittances: 1, 0.95, 0.475, 0.0475, 0.00475."""
    opacities = torch.tensor([[0.05], [0.5], [0.9], [0.9], [0.5]])

    def field(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> Tensor:
        assert t_starts.shape == t_ends.shape == (5, 1)
        assert ray_indices.tolist() == [0] * 5
        return opacities if alpha else -torch.log1p(-opacities) / (t_ends - t_starts)

    march = {"0.3": nerfacc_v03.ray_marching, "0.2": nerfacc_v02.ray_marching}[version]
    how = {"alpha_fn" if alpha else "sigma_fn": field, "near_plane": 0.0, "far_plane": 5.0, "render_step_size": 1.0}
    # With alpha_thre the first sample is left out; 0.2 then does not count its shadow: 1, 0.5, 0.05 against the stop.
    for eps, thre, kept in ((0.03, 0.0, [0, 1, 2, 3]), (0.03, 0.1, [1, 2, 3]), (0.049, 0.1, [1, 2])):
        first, start, _ = march(*one_ray(), early_stop_eps=eps, alpha_thre=thre, **how)  # type: ignore[arg-type]
        if version == "0.2" and eps == 0.049:
            kept = [1, 2, 3]
        assert start[:, 0].tolist() == kept
        assert first.tolist() == ([0] * len(kept) if version == "0.3" else [[0, len(kept)]])


def test_thresholds_of_zero_keep_all_samples_and_nothing_is_asked_without_samples() -> None:
    def field(*_: Tensor) -> Tensor:
        raise AssertionError("not called")

    ray, _, _ = ray_marching(
        *one_ray(), sigma_fn=field, early_stop_eps=0.0, near_plane=0.0, far_plane=1.0, render_step_size=0.1
    )
    assert len(ray) == 10
    ray, start, _ = ray_marching(*one_ray(), sigma_fn=field, near_plane=2.0, far_plane=1.0)
    assert ray.shape == (0,)
    assert start.shape == (0, 1)


def test_no_rays_and_empty_grid_give_no_samples() -> None:
    grid = OccupancyGrid(UNIT, 4)
    for o, d in (random_rays(0), random_rays(5)):
        ray, start, end = ray_marching(o, d, grid=grid)
        assert (ray.shape, start.shape, end.shape) == ((0,), (0, 1), (0, 1))
        info, _, _ = nerfacc_v02.ray_marching(o, d, grid=grid)
        assert info.tolist() == [[0, 0]] * len(o)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rays_d": torch.zeros(2, 3)}, r"`rays_d` must have shape \[1, 3\], got \[2, 3\]"),
        ({"rays_o": torch.zeros(1, 3, dtype=torch.int64)}, "`rays_o` must be a floating-point tensor, got torch.int64"),
        ({"render_step_size": 0.0}, "`render_step_size` must be finite and above 0, got 0.0"),
        ({"t_min": torch.zeros(2), "t_max": torch.zeros(1)}, r"`t_min` must have shape \[1\]"),
        ({"scene_aabb": torch.zeros(2, 3)}, r"`scene_aabb` must have shape \[6\]"),
        ({"sigma_fn": lambda *_: 0, "alpha_fn": lambda *_: 0}, "`sigma_fn` and `alpha_fn` were both given"),
        ({"sigma_fn": lambda a, b, c: a[:, 0]}, r"`sigma_fn` must return a tensor of shape \[10, 1\], got \[10\]"),
        ({"near_plane": float("nan")}, "`near_plane` must be a number"),
        ({"cone_angle": -1.0}, "`cone_angle` 0 or more"),
        ({"far_plane": 1e10, "render_step_size": 1e-3}, "more than 16777216 samples"),
    ],
)
@pytest.mark.parametrize("march", [nerfacc_v03.ray_marching, nerfacc_v02.ray_marching], ids=["0.3", "0.2"])
def test_wrong_arguments_are_refused_by_name(march: Any, change: dict[str, Any], message: str) -> None:
    o, d = one_ray()
    valid = {"rays_o": o, "rays_d": d, "near_plane": 0.0, "far_plane": 1.0, "render_step_size": 0.1}
    with pytest.raises(ConfigError, match=message):
        march(**{**valid, **change})


@requires_gpu
@pytest.mark.parametrize("kind", list(ContractionType))
def test_cuda_gives_the_samples_of_the_cpu(kind: ContractionType) -> None:
    cells = torch.rand(16, 16, 16, generator=torch.Generator().manual_seed(1)) > 0.5
    o, d = random_rays(1000)
    how: dict[str, Any] = {"near_plane": 0.1, "far_plane": 4.0, "render_step_size": 0.01, "cone_angle": 0.01}
    expected = ray_marching(o, d, grid=grid_of(cells, kind), **how)
    found = ray_marching(o.cuda(), d.cuda(), grid=grid_of(cells, kind).cuda(), **how)
    assert abs(len(found[0]) - len(expected[0])) <= len(expected[0]) // 200


@requires_gpu
def test_weights_and_pictures_on_cuda_wait_for_nothing() -> None:
    ray = torch.arange(100, device="cuda").repeat_interleave(7)
    start = torch.rand(700, 1, device="cuda")
    sigmas = torch.rand(700, 1, device="cuda", requires_grad=True)
    colours = torch.rand(700, 3, device="cuda")

    def step() -> None:
        weights = nerfacc_v03.render_weight_from_density(start, start + 0.1, sigmas, ray_indices=ray)
        picture, _, _ = nerfacc_v03.rendering(start, start + 0.1, ray, 100, lambda *_: (colours, sigmas))
        (weights.sum() + picture.sum()).backward()

    step()
    with forbidden_to_wait():
        step()
