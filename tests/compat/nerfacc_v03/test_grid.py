"""`OccupancyGrid` and `query_grid` of nerfacc 0.2 and 0.3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from raymine.compat import nerfacc_v02, nerfacc_v03
from raymine.compat.nerfacc_v03 import ContractionType, Grid, OccupancyGrid, contract, query_grid
from raymine.errors import ConfigError

UNIT = [0, 0, 0, 1, 1, 1]
EVERY = list(ContractionType)


def ball(x: Tensor) -> Tensor:
    """Occupancy 1 inside of a ball, (N, 1)."""
    return ((x - 0.5).norm(dim=-1, keepdim=True) < 0.4).float()


def test_attributes_and_state_dict_equal_those_of_nerfacc() -> None:
    for package, kept in ((nerfacc_v03, []), (nerfacc_v02, ["grid_coords", "grid_indices"])):
        grid = package.OccupancyGrid(UNIT, resolution=[4, 5, 6], contraction_type=ContractionType.UN_BOUNDED_TANH)
        assert isinstance(grid, package.Grid)
        assert sorted(grid.state_dict()) == sorted(["_binary", "_roi_aabb", "occs", "resolution", *kept])
        assert grid.roi_aabb.tolist() == UNIT
        assert grid.binary.shape == (4, 5, 6)
        assert not grid.binary.any()
        assert grid.contraction_type is ContractionType.UN_BOUNDED_TANH
        assert (grid.num_cells, grid.NUM_DIM, grid.device) == (120, 3, torch.device("cpu"))
        assert grid.resolution.tolist() == [4, 5, 6]
        assert grid.grid_coords[7].tolist() == [0, 1, 1]


def test_the_first_update_finds_occupied_cells() -> None:
    torch.manual_seed(0)
    grid = OccupancyGrid(UNIT, 16)
    grid.every_n_step(0, ball)
    centres = (grid.grid_coords + 0.5) / 16
    depth = (centres - 0.5).norm(dim=-1)
    occupied = grid.binary.flatten()
    assert bool(occupied[depth < 0.4 - 0.06].all())
    assert not bool(occupied[depth > 0.4 + 0.06].any())
    values = grid.occs.clone()
    grid.every_n_step(3, ball)
    assert bool((grid.occs == values).all()), "updates only every 16 steps"
    grid.every_n_step(16, lambda x: torch.zeros(len(x), 1))
    torch.testing.assert_close(grid.occs, values * 0.95)


def test_later_updates_visit_a_quarter_of_the_cells_and_occupied_ones() -> None:
    grid = OccupancyGrid(UNIT, 16)
    asked: list[int] = []

    def count(x: Tensor) -> Tensor:
        asked.append(len(x))
        return ball(x)

    grid.every_n_step(0, count)
    dense = int(grid.binary.sum())
    grid.every_n_step(256, count)
    assert asked == [4096, 1024 + min(dense, 1024)]


@pytest.mark.parametrize("kind", EVERY)
def test_updates_ask_for_points_of_the_cells(kind: ContractionType) -> None:
    grid = OccupancyGrid([-1, 0, 0, 1, 1, 2], [4, 5, 6], kind)
    torch.manual_seed(1)

    def which(x: Tensor) -> Tensor:
        """The number of the cell in which each point lies, plus one."""
        cell = query_grid(x, grid.roi_aabb, torch.arange(1.0, 121.0).view(4, 5, 6), kind)
        return cell[:, None]

    grid.every_n_step(0, which)
    own = torch.arange(1.0, 121.0)
    asked = grid.occs > 0
    # Float32 may move a point near a face to the next cell.
    assert (grid.occs[asked] == own[asked]).float().mean() > 0.97
    if kind is ContractionType.UN_BOUNDED_SPHERE:
        corners = ((grid.grid_coords + 0.5) / torch.tensor([4, 5, 6]) - 0.5).norm(dim=-1) > 0.75
        assert not bool(asked[corners].any())
    else:
        assert bool(asked.all())


def test_nan_is_ignored_and_occupied_means_above_the_smaller_of_threshold_and_mean() -> None:
    grid = OccupancyGrid(UNIT, [2, 1, 1])
    grid.every_n_step(0, lambda x: torch.tensor([[0.5], [torch.nan]]))
    assert grid.occs.tolist() == [0.5, 0.0]
    assert grid.binary.flatten().tolist() == [True, False]
    grid._update(0, lambda x: torch.tensor([[0.001], [0.6]]), occ_thre=0.9, ema_decay=0.0)
    assert grid.binary.flatten().tolist() == [False, True]


@pytest.mark.parametrize("kind", EVERY)
def test_query_grid_reads_the_cell_of_the_contracted_point(kind: ContractionType) -> None:
    values = torch.rand(3, 4, 5)
    roi = torch.tensor([-1.0, 0.0, 0.0, 1.0, 1.0, 2.0])
    points = torch.randn(200, 3)
    expected = []
    for x in points:
        unit = contract(x, roi, kind)
        i, j, k = (min(int(u * n), n - 1) for u, n in zip(unit.tolist(), (3, 4, 5), strict=True))
        outside = kind is ContractionType.AABB and bool(((unit < 0) | (unit > 1)).any())
        expected.append(0.0 if outside else float(values[i, j, k]))
    torch.testing.assert_close(query_grid(points, roi, values, kind), torch.tensor(expected))


def test_query_grid_at_faces_outside_at_infinity_and_nan() -> None:
    full = torch.ones(2, 2, 2, dtype=torch.bool)
    points = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1.001, 0, 0], [torch.nan, 0, 0], [torch.inf, 0, 0]])
    roi = torch.tensor(UNIT).float()
    assert query_grid(points, roi, full, ContractionType.AABB).tolist() == [True, True, False, False, False]
    assert query_grid(points, roi, full, ContractionType.UN_BOUNDED_SPHERE).tolist() == [True, True, True, False, True]
    assert query_grid(points[:0], roi, full, ContractionType.AABB).shape == (0,)


def test_query_occ_tells_whether_in_0_3_and_how_much_in_0_2() -> None:
    points = torch.tensor([[0.5, 0.5, 0.5], [0.01, 0.01, 0.01]])
    for package, expected in ((nerfacc_v03, [True, False]), (nerfacc_v02, [0.25, 0.0])):
        grid = package.OccupancyGrid(UNIT, 8)
        grid.every_n_step(0, lambda x: ball(x) * 0.25)
        assert grid.query_occ(points).tolist() == expected


def test_occupancies_may_be_flat_or_truth_values() -> None:
    for answer in (lambda x: ball(x)[:, 0], lambda x: ball(x) > 0.5):
        torch.manual_seed(0)
        grid, expected = OccupancyGrid(UNIT, 8), OccupancyGrid(UNIT, 8)
        grid.every_n_step(0, answer)
        torch.manual_seed(0)
        expected.every_n_step(0, ball)
        assert torch.equal(grid.occs, expected.occs)
        assert bool(grid.occs.any())


def test_evaluation_mode_refuses_updates() -> None:
    grid = OccupancyGrid(UNIT, 4).eval()
    with pytest.raises(RuntimeError, match="evaluation mode"):
        grid.every_n_step(0, ball)


def test_a_grid_without_its_attributes_says_which() -> None:
    class Own(Grid):
        pass

    for name in ("roi_aabb", "binary", "contraction_type"):
        with pytest.raises(NotImplementedError, match=f"must set the attribute `_{name}`"):
            getattr(Own(), name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OccupancyGrid([0, 0, 0]), r"`roi_aabb` must be 6 numbers, got shape \[3\]"),
        (lambda: OccupancyGrid(UNIT, [4, 4]), r"`resolution` must be one or three numbers"),
        (lambda: OccupancyGrid(UNIT, 0), r"`resolution` must be one or three numbers of 1 or more"),
        (lambda: OccupancyGrid(UNIT, 4, "aabb"), "`contraction_type` must be a member of `ContractionType`"),
        (lambda: OccupancyGrid(UNIT, 4).every_n_step(0, ball, n=0), "`n` must be 1 or more"),
        (
            lambda: OccupancyGrid(UNIT, 4).every_n_step(0, lambda x: x),
            r"`occ_eval_fn` must return a tensor of shape \[64, 1\], got \[64, 3\]",
        ),
        (lambda: OccupancyGrid(UNIT, 4).query_occ(torch.rand(3)), r"`samples` must have shape \[3, 3\], got \[3\]"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
