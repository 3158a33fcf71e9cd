"""The occupancy estimator: rays by hand, brute force, visibility against a loop, update and marking rules, state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raymine.contracts import Samples
from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.toolkit.occupancy import OccupancyEstimator

CUBE = [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
INF, NAN = math.inf, math.nan


def estimator_of(occupied: Tensor, box: list[float] | None = None) -> OccupancyEstimator:
    estimator = OccupancyEstimator(box or CUBE, occupied.shape[1:], occupied.shape[0])
    estimator.binaries = occupied
    return estimator


def random_rays(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3) * 1.5, torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)


def test_sampling_of_single_cells_matches_hand_computation() -> None:
    """Cells of side 1. From x = -1.75 at y = z = 0.5 the ray is in (0, 1, 1) for t in 0.75 .. 1.75 and in (1, 1, 1)
    until 2.75. Steps of 0.5 from 0 have midpoints 0.25, 0.75, 1.25, 1.75, 2.25, 2.75: two per cell, exits excluded."""
    for cell, starts in (((0, 1, 1), [0.5, 1.0]), ((1, 1, 1), [1.5, 2.0]), ((1, 0, 1), [])):
        occupied = torch.zeros(1, 2, 2, 2, dtype=torch.bool)
        occupied[(0, *cell)] = True
        got = estimator_of(occupied).sampling(torch.tensor([[-1.75, 0.5, 0.5]]), torch.tensor([[1.0, 0, 0]]), step=0.5)
        assert got.t_start.tolist() == pytest.approx(starts)
        assert got.t_end.tolist() == pytest.approx([t + 0.5 for t in starts])
        assert (got.first.tolist(), got.count.tolist(), got.ray_id.tolist()) == ([0], [len(starts)], [0] * len(starts))


def brute(ray, occupied: Tensor, box: list[float], near: float, far: float, cone: float):  # type: ignore[no-untyped-def]
    """Starts and ends of the samples of one ray, in steps of max(0.09, cone t), and the smallest margin by which any
    comparison was decided."""
    levels, *sides = occupied.shape
    found, closest, start = [], INF, near
    while start < far + 1e-3:
        end = start + max(0.09, cone * start)
        middle = (start + end) / 2
        point = [a + middle * b for a, b in zip(*ray, strict=True)]
        unit = [(2 * point[i] - box[i] - box[i + 3]) / (box[i + 3] - box[i]) for i in range(3)]
        closest = min(closest, abs(middle - far))
        inside = [max(map(abs, unit)) <= 2**g for g in range(levels)]
        closest = min(closest, *(abs(max(map(abs, unit)) - 2**g) for g in range(levels)))
        if any(inside) and middle < far:
            level = inside.index(True)
            cell = [(x / 2**level + 1) / 2 * side for x, side in zip(unit, sides, strict=True)]
            closest = min(closest, *(abs(c - round(c)) for c in cell))
            if occupied[(level, *(min(int(c), side - 1) for c, side in zip(cell, sides, strict=True)))]:
                found.append((start, end))
        start = end
    return found, closest


@pytest.mark.parametrize("sides", [(8, 8, 8), (2, 4, 8), (3, 5, 7)])
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("cone", [0.0, 0.05])
def test_sampling_matches_brute_force(sides: tuple[int, int, int], levels: int, cone: float) -> None:
    """With a cone, steps across an empty cell keep one length (see `tests/kernels/test_traverse.py`), so all cells are
    occupied here and rays start inside the grid."""
    torch.manual_seed(levels)
    occupied = torch.rand(levels, *sides) < (0.4 if cone == 0 else 1.0)
    box = [-1.0, -0.8, -1.2, 1.0, 1.1, 1.0]
    estimator = estimator_of(occupied, box)
    origins, directions = random_rays(20)
    origins = origins if cone == 0 else origins.clamp(-0.7, 0.7)
    directions[0] = torch.tensor([0.0, 1.0, 0.0])
    t_min, t_max = torch.rand(20) * (1.0 if cone == 0 else 0.3), 2 + 4 * torch.rand(20)
    options = {"t_min": t_min, "t_max": t_max, "near": 0.2, "far": 5.0, "step": 0.09, "cone_angle": cone}
    got = estimator.sampling(origins, directions, **options)  # type: ignore[arg-type]
    assert torch.equal(got.first, got.count.cumsum(0) - got.count)
    assert got.ray_id.dtype == got.first.dtype == got.count.dtype == torch.int64
    judged = 0
    for r in range(20):
        near, far = max(float(t_min[r]), 0.2), min(float(t_max[r]), 5.0)
        expected, closest = brute((origins[r].tolist(), directions[r].tolist()), occupied, box, near, far, cone)
        if closest < 1e-4:
            continue
        judged += 1
        mine = got.ray_id == r
        assert got.t_start[mine].tolist() == pytest.approx([t[0] for t in expected], abs=1e-5)
        assert got.t_end[mine].tolist() == pytest.approx([t[1] for t in expected], abs=1e-5)
    assert judged >= 8


def test_missing_and_non_finite_rays_get_no_samples() -> None:
    estimator = OccupancyEstimator(CUBE, 2)
    rays = [
        ([5.0, 5, 5], [0.0, 0, 1]),
        ([3.0, 0, 0], [1.0, 0, 0]),
        ([NAN, 0, 0], [1.0, 0, 0]),
        ([0.0, 0, 0], [0.0, 0, 0]),
        ([0.0, 0, 0], [NAN, 0, 1]),
        ([0.0, 0, 0], [INF, 0, 0]),
        ([INF, 0, 0], [-1.0, 0, 0]),
        ([0.0, 0, 0], [0.0, 0, 1]),  # the one that hits
        ([0.0, 0, 0], [0.0, 0, 1]),
        ([0.0, 0, 0], [0.0, 0, 1]),
    ]
    origins, directions = (torch.tensor([ray[i] for ray in rays]) for i in range(2))
    t_min = torch.tensor([0.0] * 8 + [NAN, 2.0])
    got = estimator.sampling(origins, directions, t_min=t_min, step=0.25)
    assert got.count.tolist() == [0] * 7 + [4, 0, 0]
    assert got.t_start.tolist() == [0.0, 0.25, 0.5, 0.75]

    def never(*_: Tensor) -> Tensor:
        raise AssertionError("a callback is not asked about nothing")

    estimator.binaries = torch.zeros_like(estimator.binaries)
    for o, d in ((origins, directions), (origins[:0], directions[:0])):
        got = estimator.sampling(o, d, step=0.25, density_fn=never, stratified=True)
        assert got.t_start.shape == got.t_end.shape == got.ray_id.shape == (0,)
        assert got.count.tolist() == got.first.tolist() == [0] * len(o)


def test_in_place_changes_of_grid_and_box_take_effect() -> None:
    estimator = OccupancyEstimator(CUBE, 8)
    ray = torch.tensor([[0.1, 0.1, 0.1]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert len(estimator.sampling(*ray, step=0.3)) == 3
    estimator.binaries[:] = False
    assert len(estimator.sampling(*ray, step=0.3)) == 0
    estimator.binaries[:] = True
    estimator.box.mul_(2)
    assert len(estimator.sampling(*ray, step=0.3)) == 6
    with torch.inference_mode():
        assert len(estimator.sampling(*ray, step=0.3)) == 6


def test_stratified_sampling_shifts_rays_by_torch_random_numbers() -> None:
    estimator = OccupancyEstimator(CUBE, 2)
    origins, directions = torch.zeros(4, 3), torch.tensor([[0.0, 0, 1]]).expand(4, 3)
    torch.manual_seed(5)
    got = estimator.sampling(origins, directions, step=0.25, stratified=True)
    torch.manual_seed(5)
    torch.testing.assert_close(got.t_start[got.first], torch.rand(4) * 0.25)


def seen_by_loop(samples: Samples, alphas: list[float], stop: float, faint: float) -> list[int]:
    kept = []
    for first, count in zip(samples.first.tolist(), samples.count.tolist(), strict=True):
        light = 1.0
        for i in range(first, first + count):
            if light >= stop and alphas[i] >= faint:
                kept.append(i)
            light *= 1 - alphas[i]
    return kept


@pytest.mark.parametrize("alpha", [True, False])
def test_visibility_filter_matches_plain_loop(alpha: bool) -> None:
    torch.manual_seed(6)
    estimator = estimator_of(torch.rand(1, 8, 8, 8) < 0.6)
    estimator.occupancies.fill_(0.02)
    origins, directions = random_rays(30)
    every = estimator.sampling(origins, directions, step=0.1)
    alphas = torch.rand(len(every)) ** 4
    asked = []

    def answer(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> Tensor:
        asked.append((t_starts, t_ends, ray_indices))
        return alphas if alpha else (-torch.log1p(-alphas) / (t_ends - t_starts))[:, None]

    callback = {"alpha_fn": answer} if alpha else {"density_fn": answer}
    options = {"step": 0.1, "early_stop": 0.3, **callback}
    for threshold, faint in ((0.0, 0.0), (0.01, 0.01), (0.5, 0.02)):  # the mean occupancy, 0.02, bounds the threshold
        got = estimator.sampling(origins, directions, alpha_threshold=threshold, **options)  # type: ignore[arg-type]
        kept = seen_by_loop(every, alphas.tolist(), 0.3, faint)
        assert got.t_start.tolist() == every.t_start[kept].tolist()
        assert got.ray_id.tolist() == every.ray_id[kept].tolist()
        assert got.count.tolist() == torch.bincount(got.ray_id, minlength=30).tolist()
        assert got.first.tolist() == (got.count.cumsum(0) - got.count).tolist()
    assert torch.equal(asked[0][2], every.ray_id)
    with pytest.raises(ConfigError, match="both"):
        estimator.sampling(origins, directions, density_fn=answer, alpha_fn=answer)
    with pytest.raises(ConfigError, match="callback"):
        estimator.sampling(origins, directions, density_fn=lambda *_: torch.zeros(1), step=0.1)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("alpha", [True, False])
def test_nan_and_infinite_values_are_opaque_on_their_own_ray(backend: str, alpha: bool) -> None:
    estimator = OccupancyEstimator(CUBE, 2)
    estimator.occupancies.fill_(1.0)
    origins, directions = torch.zeros(3, 3), torch.tensor([[0.0, 0, 1]]).expand(3, 3)
    values = torch.tensor([0.1, NAN, 0.5, 0.5, INF, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1])
    name = "alpha_fn" if alpha else "density_fn"
    with dispatch.force(backend):  # type: ignore[arg-type]
        got = estimator.sampling(origins, directions, step=0.25, alpha_threshold=1e-3, **{name: lambda *_: values})  # type: ignore[arg-type]
    assert got.count.tolist() == [2, 1, 4]


def test_update_every_n_steps_matches_hand_computation() -> None:
    estimator = OccupancyEstimator(CUBE, 2)
    assert estimator.binaries.all()
    estimator.update_every_n_steps(0, lambda x: (x[:, 2] > 0) * 0.8)
    assert estimator.occupancies.tolist() == pytest.approx([0.0, 0.8] * 4)
    assert estimator.binaries.flatten().tolist() == [False, True] * 4
    estimator.update_every_n_steps(7, lambda x: x[:, 0] / 0)  # not a 16th step
    estimator.update_every_n_steps(16, lambda x: torch.full((len(x), 1), 0.5), ema_decay=0.5, threshold=10.0)
    # max(0.5 * 0, 0.5) = 0.5 and max(0.5 * 0.8, 0.5) = 0.5: all are alike, so none exceeds the mean.
    assert estimator.occupancies.tolist() == pytest.approx([0.5] * 8)
    assert not estimator.binaries.any()
    estimator.update_every_n_steps(32, lambda x: torch.where(x[:, 0] > 0, torch.tensor(NAN), torch.tensor(INF)))
    # NaN leaves a value unchanged, without decay; infinity becomes a large number.
    assert estimator.occupancies.tolist() == pytest.approx([1e10] * 4 + [0.5] * 4)
    assert estimator.binaries.all()  # above 0.01
    estimator.eval()
    with pytest.raises(ConfigError, match="train"):
        estimator.update_every_n_steps(0, lambda x: x[:, 0])


def test_later_updates_visit_some_cells_with_points_inside_them() -> None:
    estimator = OccupancyEstimator(CUBE, (4, 2, 2), levels=2)
    estimator.update_every_n_steps(0, lambda x: (x[:, 0] > 0.5) * 1.0)
    asked: list[Tensor] = []

    def ask(x: Tensor) -> Tensor:
        asked.append(x)
        return torch.zeros(len(x))

    estimator.update_every_n_steps(256, ask, ema_decay=0.5)
    assert [len(x) for x in asked] == [4 + 4, 4 + 4]
    # A cell that is drawn twice decays once.
    assert set(estimator.occupancies.tolist()) <= {0.0, 0.5, 1.0}
    points: list[Tensor] = []
    estimator.update_every_n_steps(16, lambda x: (points.append(x), x[:, 0])[1])  # type: ignore[func-returns-value]
    for level, x in enumerate(points):
        unit = (x / 2**level + 1) / 2 * torch.tensor([4, 2, 2])
        cells = unit.floor().long()
        assert ((cells[:, 0] * 2 + cells[:, 1]) * 2 + cells[:, 2]).tolist() == list(range(16))
    with pytest.raises(ConfigError, match="one value"):
        estimator.update_every_n_steps(0, lambda x: x)


def test_mark_invisible_cells_matches_projection_of_each_cell() -> None:
    torch.manual_seed(8)
    sides = (5, 4, 3)
    estimator = OccupancyEstimator([-1.0, -1.0, -1.0, 1.0, 1.5, 1.0], sides, levels=2)
    K = torch.tensor([[60.0, 0, 32], [0, 60.0, 24], [0, 0, 1]])
    poses = []
    for centre in ([0.0, 0.0, -3.0], [0.5, 0.2, -1.2]):
        turn = torch.linalg.qr(torch.eye(3) + 0.1 * torch.randn(3, 3))[0]
        turn = turn * torch.sign(turn.diagonal())
        poses.append(torch.cat((turn, torch.tensor(centre)[:, None]), 1))
    estimator.mark_invisible_cells(K[None], torch.stack(poses), 64, 48, near_plane=0.5, chunk=7)
    expected = []
    for scale in (1, 2):
        for i in range(60):
            cell = (i // 12, i // 3 % 4, i % 3)
            box = estimator.box.tolist()
            middle = [(box[a] + box[a + 3]) / 2 for a in range(3)]
            half = [(box[a + 3] - box[a]) / 2 * scale for a in range(3)]
            point = torch.tensor([middle[a] + half[a] * (2 * cell[a] / (sides[a] - 1) - 1) for a in range(3)])
            seen, close = False, False
            for pose in poses:
                x, y, z = (K @ (pose[:, :3].T @ (point - pose[:, 3]))).tolist()
                if z >= 0 and 0 <= x / z < 64 and 0 <= y / z < 48:
                    seen, close = seen or z >= 0.5, close or z < 0.5
            expected.append(0.0 if seen and not close else -1.0)
    assert estimator.occupancies.tolist() == expected
    assert 0 < expected.count(0.0) < 120
    assert estimator.binaries.flatten().tolist() == [value == 0 for value in expected]
    estimator.update_every_n_steps(0, lambda x: torch.ones(len(x)))
    assert estimator.occupancies.tolist() == [1.0 if value == 0 else -1.0 for value in expected]
    estimator.update_every_n_steps(256, lambda x: torch.ones(len(x)))
    assert estimator.binaries.flatten().tolist() == [value == 0 for value in expected]
    estimator.mark_invisible_cells(K[None], torch.stack(poses), 0, 48)
    estimator.update_every_n_steps(0, lambda x: torch.ones(len(x)))
    assert not estimator.binaries.any()
    with pytest.raises(ConfigError, match="cameras"):
        estimator.mark_invisible_cells(K, torch.stack(poses), 64, 48)


def test_visibility_of_a_single_cell_is_tested_at_its_centre() -> None:
    estimator = OccupancyEstimator(CUBE, 1)
    K, pose = torch.tensor([[[10.0, 0, 5], [0, 10, 5], [0, 0, 1]]]), torch.eye(4)[None].clone()
    pose[0, 2, 3] = -3.0
    estimator.mark_invisible_cells(K, pose, 10, 10)
    assert estimator.occupancies.tolist() == [0.0]


def test_state_dict_round_trips_and_invalid_arguments_raise() -> None:
    estimator = OccupancyEstimator(CUBE, (2, 4, 3), levels=2)
    estimator.update_every_n_steps(0, lambda x: x[:, 0].clamp_min(0))
    assert set(estimator.state_dict()) == {"box", "resolution", "occupancies", "binaries"}
    other = OccupancyEstimator([0, 0, 0, 1, 1, 1], (2, 4, 3), levels=2)
    other.load_state_dict(estimator.state_dict())
    rays = random_rays(20)
    assert torch.equal(estimator.sampling(*rays, step=0.1).t_start, other.sampling(*rays, step=0.1).t_start)
    assert torch.equal(estimator.occupancies, other.occupancies)
    for wrong in (
        {"box": [0, 0, 0, 1, 0, 1]},
        {"box": [0, 0, 0, 1, NAN, 1]},
        {"box": [0, 0, 1]},
        {"box": CUBE, "resolution": 0},
        {"box": CUBE, "resolution": [2, 2]},
        {"box": CUBE, "levels": 0},
    ):
        with pytest.raises(ConfigError):
            OccupancyEstimator(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="t_min"):
        estimator.sampling(*rays, t_min=torch.zeros(3))
    for step in (0.0, -0.1, NAN):
        with pytest.raises(ConfigError, match="`step` must be above 0"):
            estimator.sampling(*rays, step=step)
    with pytest.raises(ConfigError, match="longer steps"):
        estimator.sampling(torch.zeros(1, 3), torch.tensor([[0.0, 0, 1e-30]]), step=0.1, far=INF)
    with pytest.raises(ConfigError, match="`n`"):
        estimator.update_every_n_steps(0, lambda x: x[:, 0], n=0)
