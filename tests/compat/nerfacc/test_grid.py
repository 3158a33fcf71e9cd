"""Grids and lenses of the nerfacc drop-in: traversal against a plain Python walk, the estimator, undistortion."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor

from raymine.compat.nerfacc import cameras, grid
from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.compat.nerfacc.estimators.occ_grid import OccGridEstimator
from raymine.compat.nerfacc.grid import _enlarge_aabb, _query, _ray_aabb_intersect, ray_aabb_intersect, traverse_grids
from raymine.errors import ConfigError

CUBE = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])


def boxes(levels: int, base: Tensor = CUBE) -> Tensor:
    return torch.stack([_enlarge_aabb(base, 2**g) for g in range(levels)])


def random_rays(n: int, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3) * spread, torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)


def cells_met(o: list[float], d: list[float], full: Tensor, aabbs: Tensor, near: float, far: float):  # type: ignore[no-untyped-def]
    """List of (exit distance, occupied) of the cells along one ray. Where boxes overlap, the innermost one counts."""
    found: list[tuple[float, bool]] = []
    bounds, edges = [box.tolist() for box in aabbs], []
    for box in bounds:
        pairs = [sorted(((box[i] - o[i]) / d[i], (box[i + 3] - o[i]) / d[i])) for i in range(3) if d[i]]
        pairs += [(-math.inf, math.inf) if box[i] <= o[i] <= box[i + 3] else (1.0, 0.0) for i in range(3) if not d[i]]
        enter, leave = max(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
        edges += [enter, leave] if enter < leave and leave > 0 else []
    t = near
    while t < far:
        ahead = [a + b * (t + 1e-7) for a, b in zip(o, d, strict=True)]
        inside = [all(box[i] <= ahead[i] < box[i + 3] for i in range(3)) for box in bounds]
        faces = list(edges)
        if any(inside):
            level = inside.index(True)
            box, sides = bounds[level], full.shape[1:]
            size = [(box[i + 3] - box[i]) / sides[i] for i in range(3)]
            at = [int((ahead[i] - box[i]) / size[i]) for i in range(3)]
            faces += [(box[i] + (at[i] + (d[i] > 0)) * size[i] - o[i]) / d[i] for i in range(3) if d[i]]
        later = [face for face in faces if face > t + 2e-7]
        if not later:
            break
        end = min(far, *later)
        if any(inside):
            found += [(t, False)] if not found else []
            found.append((end, bool(full[level, at[0], at[1], at[2]])))
        t = end
    return found


def plain_walk(cells, near: float, step: float, cone: float, limit: int = 0):  # type: ignore[no-untyped-def]
    """Step by step: list of (start, end, joined to the one before), the final distance, and the smallest margin by
    which any comparison was decided."""
    t, out, joined, closest = near, [], False, math.inf
    for end, occupied in cells:
        if limit and len(out) >= limit:
            break
        dt = max(step, cone * t)
        while not occupied:
            closest = min(closest, abs(t + dt / 2 - end))
            if t + dt / 2 >= end:
                break
            t += dt
        joined = joined and occupied
        while occupied and not (limit and len(out) >= limit):
            dt = max(step, cone * t)
            closest = min(closest, abs(t + dt / 2 - end))
            if t + dt / 2 >= end:
                break
            out.append((t, t + dt, joined))
            t, joined = t + dt, True
    return out, t, closest


@pytest.mark.parametrize("cone", [0.0, 0.03, 0.4])
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("limit", [None, 5])
def test_traverse_grids_matches_plain_python_walk(levels: int, cone: float, limit: int | None) -> None:
    torch.manual_seed(levels)
    sides = (4, 3, 5)
    full = torch.rand(levels, *sides) < 0.4
    rays_o, rays_d = random_rays(40)
    rays_d[0] = torch.tensor([0.0, 1.0, 0.0])
    near, far = torch.rand(40) * 0.5, 2 + torch.rand(40) * 6
    aabbs = boxes(levels, torch.tensor([-1.0, -0.8, -1.2, 1.0, 1.1, 1.0]))
    intervals, samples, ends = traverse_grids(
        rays_o, rays_d, full, aabbs, near, far, step_size=0.11, cone_angle=cone, traverse_steps_limit=limit
    )
    judged = 0
    for r in range(40):
        cells = cells_met(rays_o[r].tolist(), rays_d[r].tolist(), full, aabbs, float(near[r]), float(far[r]))
        expected, end, closest = plain_walk(cells, float(near[r]), 0.11, cone, limit or 0)
        if closest < 1e-5:
            continue
        judged += 1
        first, count = intervals.packed_info[r].tolist()
        mine = slice(first, first + count)
        assert (intervals.ray_indices[mine] == r).all()
        vals, left, right = intervals.vals[mine], intervals.is_left[mine], intervals.is_right[mine]
        assert vals[left].tolist() == pytest.approx([s[0] for s in expected], abs=2e-5)
        assert vals[right].tolist() == pytest.approx([s[1] for s in expected], abs=2e-5)
        assert (left & right).sum() == sum(s[2] for s in expected)
        assert count == sum(1 if s[2] else 2 for s in expected)
        first, count = samples.packed_info[r].tolist()
        assert count == len(expected)
        assert samples.vals[first : first + count].tolist() == pytest.approx(
            [(s[0] + s[1]) / 2 for s in expected], abs=2e-5
        )
        assert (samples.ray_indices[first : first + count] == r).all()
        assert float(ends[r]) == pytest.approx(end, abs=2e-5)
    assert judged > 30
    assert samples.is_valid is not None
    assert samples.is_valid.all()


def test_traverse_grids_through_two_cells_matches_hand_computation() -> None:
    """2 x 2 x 2 cells of side 1; from x = -2 at y = z = -0.5 the ray is in cell (0, 0, 0) for t in 1 .. 2 (occupied),
    then in (1, 0, 0) for t in 2 .. 3 (empty). Steps of 0.4 from 0.1 have middles 0.3, 0.7, 1.1, 1.5, 1.9, 2.3, ..."""
    full = torch.zeros(1, 2, 2, 2, dtype=torch.bool)
    full[0, 0, 0, 0] = True
    ray = torch.tensor([[-2.0, -0.5, -0.5]]), torch.tensor([[1.0, 0.0, 0.0]])
    intervals, samples, ends = traverse_grids(*ray, full, boxes(1), torch.tensor([0.1]), step_size=0.4)
    assert intervals.vals.tolist() == pytest.approx([0.9, 1.3, 1.7, 2.1])
    assert intervals.is_left.tolist() == [True, True, True, False]
    assert intervals.is_right.tolist() == [False, True, True, True]
    assert samples.vals.tolist() == pytest.approx([1.1, 1.5, 1.9])
    assert samples.packed_info.tolist() == [[0, 3]]
    # The walk steps on through the empty cell until a midpoint lies behind it: 2.1, 2.5, then 2.9 + 0.2 > 3.
    assert ends.tolist() == pytest.approx([2.9])


def test_non_positive_step_gives_one_sample_per_occupied_cell() -> None:
    full = torch.ones(2, 2, 2, 2, dtype=torch.bool)
    full[1, 1, 0, 0] = False
    ray = torch.tensor([[-3.0, -0.5, -0.5]]), torch.tensor([[1.0, 0.0, 0.0]])
    intervals, samples, _ = traverse_grids(*ray, full, boxes(2), step_size=0.0)
    # The outer box from -2, its cell up to the inner box at -1, two inner cells, and an empty outer cell.
    assert intervals.vals.tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert samples.vals.tolist() == pytest.approx([1.5, 2.5, 3.5])
    _, samples, ends = traverse_grids(*ray, full, boxes(2), step_size=-1.0, traverse_steps_limit=2)
    assert samples.vals.tolist() == pytest.approx([1.5, 2.5])
    assert ends.tolist() == pytest.approx([3.0])


def test_disjoint_boxes_leave_a_gap_between_samples() -> None:
    aabbs = torch.tensor([[0.0, 0, 0, 1, 1, 1], [3.0, 0, 0, 4, 1, 1]])
    ray = torch.tensor([[-1.0, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]])
    intervals, _, _ = traverse_grids(*ray, torch.ones(2, 1, 1, 1, dtype=torch.bool), aabbs, step_size=0.5)
    assert intervals.vals.tolist() == pytest.approx([1.0, 1.5, 2.0, 4.0, 4.5, 5.0])


def test_over_allocated_traversal_continues_from_its_previous_end() -> None:
    torch.manual_seed(0)
    rays_o, rays_d = random_rays(12)
    full, aabbs = torch.rand(2, 8, 8, 8) < 0.5, boxes(2)
    whole, reference, _ = traverse_grids(rays_o, rays_d, full, aabbs, step_size=0.1)
    near, mask, found = None, None, []
    for _ in range(30):
        intervals, samples, near = traverse_grids(
            rays_o, rays_d, full, aabbs, near, None, 0.1, 0.0, 4, over_allocate=True, rays_mask=mask
        )
        live = 12 if mask is None else int(mask.sum())
        assert (len(samples.vals), len(intervals.vals)) == (live * 4, live * 8)
        assert samples.is_valid is not None
        rays = samples.ray_indices[samples.is_valid]
        assert len(rays) == int(samples.packed_info[:, 1].sum())
        assert (intervals.ray_indices[intervals.is_left] == rays).all()
        found.append(torch.stack((rays, intervals.vals[intervals.is_left], intervals.vals[intervals.is_right]), 1))
        mask = samples.packed_info[:, 1] == 4
        if not mask.any():
            break
    rows = torch.cat(found)
    rows = rows[torch.sort(rows[:, 0], stable=True).indices]
    assert rows[:, 0].long().tolist() == reference.ray_indices.tolist()
    torch.testing.assert_close(rows[:, 1], whole.vals[whole.is_left], atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="traverse_steps_limit"):
        traverse_grids(rays_o, rays_d, full, aabbs, over_allocate=True)


def test_rays_without_samples_give_empty_results_and_bad_arguments_raise() -> None:
    full, none = torch.ones(1, 2, 2, 2, dtype=torch.bool), torch.zeros(1, 2, 2, 2, dtype=torch.bool)
    nan, inf = float("nan"), float("inf")
    rays_o = torch.tensor([[0.0, 0, 0], [nan, 0, 0], [5.0, 5, 5], [0.0, 0, 0], [0.0, 0, 0], [3.0, 0, 0]])
    rays_d = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0.0, 0, 1], [nan, 0, 1], [inf, 0, 0], [1.0, 0, 0]])
    for o, d, binaries, aabbs in (
        (rays_o, rays_d, full, boxes(1)),
        (rays_o[:0], rays_d[:0], full, boxes(1)),
        (*random_rays(7, 0.1), none, boxes(1)),
        (*random_rays(7, 0.1), full, torch.tensor([[0.0, -1, -1, 0, 1, 1]])),
        (*random_rays(7, 0.1), full, torch.tensor([[1.0, 1, 1, -1, -1, -1]])),
    ):
        for step in (0.1, 0.0):
            intervals, samples, ends = traverse_grids(o, d, binaries, aabbs, step_size=step)
            assert intervals.vals.shape == samples.vals.shape == samples.ray_indices.shape == (0,)
            assert intervals.packed_info.tolist() == samples.packed_info.tolist() == [[0, 0]] * len(o)
            assert ends.shape == (len(o),)
            assert ends.isfinite().all()
    with pytest.raises(ConfigError, match="aabbs"):
        traverse_grids(rays_o, rays_d, full, boxes(2))
    with pytest.raises(ConfigError, match="longer steps"):
        traverse_grids(rays_o[2:3] * 0, rays_d[2:3], full, boxes(1), step_size=1e-9)
    with pytest.raises(ConfigError, match="cone_angle"):
        traverse_grids(rays_o, rays_d, full, boxes(1), cone_angle=-1.0)


def test_ray_aabb_intersect_matches_torch_implementation() -> None:
    torch.manual_seed(1)
    rays_o, rays_d = random_rays(200, 0.5)
    low = torch.rand(20, 3)
    aabbs = torch.cat((low, low + torch.rand(20, 3)), -1)
    for got, expected in zip(
        ray_aabb_intersect(rays_o, rays_d, aabbs), _ray_aabb_intersect(rays_o, rays_d, aabbs), strict=True
    ):
        torch.testing.assert_close(got, expected)
    t_mins, t_maxs, hits = ray_aabb_intersect(
        torch.tensor([[-2.0, 0, 0], [0.0, 0, 0], [3.0, 0, 0]]),
        torch.tensor([[1.0, 0, 0]]).expand(3, 3),
        CUBE[None],
        near_plane=0.5,
        far_plane=2.0,
        miss_value=-7.0,
    )
    assert t_mins.flatten().tolist() == [1.0, 0.5, -7.0]
    assert t_maxs.flatten().tolist() == [2.0, 1.0, -7.0]
    assert hits.flatten().tolist() == [True, True, False]


def test_query_reports_traversed_samples_as_occupied() -> None:
    torch.manual_seed(2)
    rays_o, rays_d = random_rays(20)
    full, aabbs = torch.rand(3, 8, 8, 8) < 0.5, boxes(3)
    for cone in (0.0, 0.02):
        _, samples, _ = traverse_grids(rays_o, rays_d, full, aabbs, step_size=0.013, cone_angle=cone)
        occupied, inside = _query(
            rays_o[samples.ray_indices] + samples.vals[:, None] * rays_d[samples.ray_indices], full, CUBE
        )
        assert occupied.float().mean() > 0.999
        assert inside.all()


@pytest.mark.parametrize("cone", [0.0, 0.05])
def test_sampling_returns_the_samples_of_traverse_grids(cone: float) -> None:
    torch.manual_seed(3)
    estimator = OccGridEstimator(CUBE, resolution=8, levels=2)
    estimator.binaries = torch.rand(2, 8, 8, 8) < 0.4
    rays_o, rays_d = random_rays(60)
    t_min, t_max = torch.rand(60), 1 + 3 * torch.rand(60)
    ray_indices, t_starts, t_ends = estimator.sampling(
        rays_o, rays_d, near_plane=0.2, far_plane=3.5, t_min=t_min, t_max=t_max, render_step_size=0.07, cone_angle=cone
    )
    near, far = t_min.clamp_min(0.2), t_max.clamp_max(3.5)
    intervals, samples, _ = traverse_grids(rays_o, rays_d, estimator.binaries, estimator.aabbs, near, far, 0.07, cone)
    assert ray_indices.tolist() == samples.ray_indices.tolist()
    torch.testing.assert_close(t_starts, intervals.vals[intervals.is_left], atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(t_ends, intervals.vals[intervals.is_right], atol=2e-6, rtol=1e-6)


def test_stratified_sampling_shifts_rays_by_seeded_offsets() -> None:
    estimator = OccGridEstimator(CUBE, resolution=4)
    estimator.binaries = torch.ones_like(estimator.binaries)
    ray = torch.tensor([[0.0, 0.0, 0.0]] * 5), torch.tensor([[0.0, 0.0, 1.0]] * 5)
    torch.manual_seed(7)
    ids, starts, _ = estimator.sampling(*ray, render_step_size=0.25, stratified=True)
    torch.manual_seed(7)
    shift = torch.rand(5) * 0.25
    firsts = torch.stack([starts[ids == r][0] for r in range(5)])
    torch.testing.assert_close(firsts, shift)


def test_sampling_drops_occluded_and_faint_samples() -> None:
    estimator = OccGridEstimator([-1.0, -1, -1, 1, 1, 1], resolution=2)
    estimator.binaries = torch.ones_like(estimator.binaries)
    estimator.occs.fill_(1.0)
    ray = torch.tensor([[-1.0, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]])
    alphas = torch.tensor([0.5, 0.004, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5])
    options = {"render_step_size": 0.25, "early_stop_eps": 0.04, "alpha_thre": 0.01}
    # Transmittance before each: 1, 0.5, 0.498, 0.0498, 0.00498, ...; the second alpha is below `alpha_thre`.
    _, starts, _ = estimator.sampling(*ray, alpha_fn=lambda *_: alphas, **options)
    assert starts.tolist() == pytest.approx([0.0, 0.5, 0.75])
    _, by_density, _ = estimator.sampling(*ray, sigma_fn=lambda a, b, _: -torch.log1p(-alphas) / (b - a), **options)
    assert by_density.tolist() == starts.tolist()
    # `alpha_thre` is capped by the mean occupancy.
    estimator.occs.fill_(0.001)
    _, starts, _ = estimator.sampling(*ray, alpha_fn=lambda *_: alphas, **options)
    assert len(starts) == 4

    def never(*_: Tensor) -> Tensor:
        raise AssertionError("a callback is not asked about nothing")

    estimator.binaries = torch.zeros_like(estimator.binaries)
    assert [part.shape for part in estimator.sampling(*ray, sigma_fn=never)] == [(0,)] * 3


def test_update_every_n_steps_matches_hand_computation() -> None:
    estimator = OccGridEstimator(CUBE, resolution=2)
    assert not estimator.binaries.any()
    estimator.update_every_n_steps(0, lambda x: (x[:, :1] > 0) * 0.5)
    # Cells with x > 0 have 0.5, the mean is 0.25, and the threshold 0.01 is lower.
    assert estimator.occs.tolist() == [0.0] * 4 + [0.5] * 4
    assert estimator.binaries.flatten().tolist() == [False] * 4 + [True] * 4
    estimator.update_every_n_steps(3, lambda x: 1 / 0)  # type: ignore[arg-type]  # not a 16th step
    estimator.update_every_n_steps(16, lambda x: torch.zeros(len(x), 1), ema_decay=0.5, occ_thre=0.3)
    assert estimator.occs.tolist() == [0.0] * 4 + [0.25] * 4
    # The threshold is the mean, 0.125, now.
    assert estimator.binaries.flatten().tolist() == [False] * 4 + [True] * 4
    torch.manual_seed(0)
    estimator.update_every_n_steps(512, lambda x: torch.ones(len(x), 1), n=16)
    torch.manual_seed(0)
    anywhere = torch.randint(8, (2,))
    chosen = set(anywhere.tolist()) | {4 + i for i in torch.randint(4, (2,)).tolist()}
    assert {i for i, value in enumerate(estimator.occs.tolist()) if value == 1.0} == chosen
    estimator.eval()
    with pytest.raises(RuntimeError, match="train"):
        estimator.update_every_n_steps(0, lambda x: x[:, :1])


@pytest.mark.parametrize("resolution", [1, (3, 1, 1)])
def test_grid_of_fewer_than_four_cells_is_updated_after_warmup(resolution: int | tuple[int, ...]) -> None:
    """A quarter of its cells would be none."""
    estimator = OccGridEstimator(CUBE, resolution)
    asked: list[int] = []

    def occupancy(points: Tensor) -> Tensor:
        asked.append(len(points))
        return torch.ones(len(points), 1)

    estimator.update_every_n_steps(16, occupancy, warmup_steps=0)
    assert asked == [1]
    assert float(estimator.occs.max()) == 1.0


def test_mark_invisible_cells_matches_counts_of_nerfacc() -> None:
    """The counts are those of nerfacc's own test for this camera."""
    estimator = OccGridEstimator(CUBE, resolution=32, levels=4)
    K = torch.tensor([[[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]])
    pose = torch.tensor([[[-1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 2.5]]])
    estimator.mark_invisible_cells(K, pose, 100, 100)
    assert int((estimator.occs == -1).sum()) == 77660
    assert int((estimator.occs == 0).sum()) == 53412
    assert sum(len(level) for level in estimator._get_all_cells()) == 53412
    estimator.update_every_n_steps(0, lambda x: torch.ones(len(x), 1))
    assert int(estimator.binaries.sum()) == 53412


def test_estimator_buffers_state_dict_and_argument_errors() -> None:
    estimator = OccGridEstimator([0, 0, 0, 1, 2, 3], resolution=[2, 3, 4], levels=2)
    assert isinstance(estimator, AbstractEstimator)
    assert set(estimator.state_dict()) == {"resolution", "aabbs", "occs", "binaries"}
    assert estimator.resolution.tolist() == [2, 3, 4]
    assert estimator.aabbs.tolist() == [[0, 0, 0, 1, 2, 3], [-0.5, -1, -1.5, 1.5, 3, 4.5]]
    assert estimator.occs.shape == (48,)
    assert estimator.binaries.shape == (2, 2, 3, 4)
    assert estimator.grid_coords[13].tolist() == [1, 0, 1]
    assert estimator.grid_indices.tolist() == list(range(24))
    assert estimator.device.type == "cpu"
    estimator.update_every_n_steps(0, lambda x: x[:, :1].clamp_min(0))
    other = OccGridEstimator([0, 0, 0, 9, 9, 9], resolution=[2, 3, 4], levels=2)
    other.load_state_dict(estimator.state_dict())
    for name, value in estimator.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    for wrong in ({"resolution": [2, 3]}, {"levels": 0}, {"contraction_type": 1}):
        with pytest.raises(ConfigError):
            OccGridEstimator([0, 0, 0, 1, 1, 1], **wrong)
    with pytest.raises(NotImplementedError):
        AbstractEstimator().sampling()
    with pytest.raises(NotImplementedError):
        estimator(1)


def test_parameter_names_equal_those_of_nerfacc() -> None:
    def names(function) -> list[str]:  # type: ignore[no-untyped-def]
        return list(inspect.signature(function).parameters)

    assert names(grid.ray_aabb_intersect) == ["rays_o", "rays_d", "aabbs", "near_plane", "far_plane", "miss_value"]
    assert names(grid.traverse_grids) == [
        "rays_o", "rays_d", "binaries", "aabbs", "near_planes", "far_planes", "step_size", "cone_angle",
        "traverse_steps_limit", "over_allocate", "rays_mask", "t_sorted", "t_indices", "hits",
    ]  # fmt: skip
    assert names(OccGridEstimator.sampling)[1:] == [
        "rays_o", "rays_d", "sigma_fn", "alpha_fn", "near_plane", "far_plane", "t_min", "t_max", "render_step_size",
        "early_stop_eps", "alpha_thre", "stratified", "cone_angle",
    ]  # fmt: skip
    assert names(OccGridEstimator.update_every_n_steps)[1:] == [
        "step", "occ_eval_fn", "occ_thre", "ema_decay", "warmup_steps", "n",
    ]  # fmt: skip
    assert names(OccGridEstimator.mark_invisible_cells)[1:] == ["K", "c2w", "width", "height", "near_plane", "chunk"]
    assert names(cameras.opencv_lens_undistortion) == ["uv", "params", "eps", "iters"]
    assert names(cameras.opencv_lens_undistortion_fisheye) == ["uv", "params", "eps", "iters"]


def test_precomputed_box_intersections_give_the_same_samples() -> None:
    torch.manual_seed(5)
    rays_o, rays_d = random_rays(10)
    full, aabbs = torch.rand(2, 4, 4, 4) < 0.5, boxes(2)
    t_mins, t_maxs, hits = ray_aabb_intersect(rays_o, rays_d, aabbs)
    t_sorted, t_indices = torch.sort(torch.cat((t_mins, t_maxs), -1), -1)
    _, given, _ = traverse_grids(
        rays_o, rays_d, full, aabbs, step_size=0.1, t_sorted=t_sorted, t_indices=t_indices, hits=hits
    )
    _, expected, _ = traverse_grids(rays_o, rays_d, full, aabbs, step_size=0.1)
    assert torch.equal(given.vals, expected.vals)


@pytest.mark.parametrize("coefficients", [0, 1, 2, 4, 8])
def test_undistortion_inverts_distortion(coefficients: int) -> None:
    torch.manual_seed(6)
    uv = torch.rand(3, 50, 2)
    params = torch.rand(coefficients) * 0.01
    straight = cameras.opencv_lens_undistortion(uv, params, 1e-5, 10)
    padded = torch.nn.functional.pad(params, (0, 8 - coefficients))
    torch.testing.assert_close(cameras._opencv_lens_distortion(straight, padded), uv, atol=1e-5, rtol=0)
    torch.testing.assert_close(cameras._opencv_lens_undistortion(uv, params), straight)
    fisheye = torch.rand(4) * 0.01
    straight = cameras.opencv_lens_undistortion_fisheye(uv, fisheye)
    torch.testing.assert_close(cameras._opencv_lens_distortion_fisheye(straight, fisheye), uv, atol=1e-5, rtol=0)
    # Without coefficients the points themselves are returned, as in nerfacc.
    uv.requires_grad_()
    assert cameras.opencv_lens_undistortion(uv, params).requires_grad == (coefficients == 0)
    assert not cameras.opencv_lens_undistortion_fisheye(uv, fisheye).requires_grad
    assert cameras._opencv_lens_undistortion(uv, params).requires_grad
    with pytest.raises(ConfigError, match="coefficients"):
        cameras.opencv_lens_undistortion(uv, torch.zeros(3))
