"""The update rule of an occupancy grid: by hand, repeated cells, invisible cells, NaN, and the limit of occupancy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raymine.contracts import Bounds
from raymine.errors import ConfigError
from raymine.samplers import OccupancyConfig, OccupancySampler
from raymine.toolkit.occupancy_update import Visit, above_limit, grid_coordinates, update_values

NAN, INF = math.nan, math.inf


def visit(cells: list[int]) -> Visit:
    """Cell i at the point (i, 0, 0)."""
    index = torch.tensor(cells, dtype=torch.int64)
    return Visit(index, torch.stack((index.float(), torch.zeros(len(cells)), torch.zeros(len(cells))), -1))


def gives(*found: float) -> Tensor:
    return torch.tensor(found)


def test_update_values_matches_hand_computation() -> None:
    values = torch.tensor([[0.8, 0.2, 0.6], [0.4, 0.0, 1.0]])
    asked: list[list[float]] = []

    def occupancy(points: Tensor) -> Tensor:
        asked.append(points[:, 0].tolist())
        return 0.3 + 0 * points[:, :1]

    update_values(values, [visit([0, 1]), visit([2])], occupancy, 0.5, skip_nan=True)
    # max(0.4, 0.3), max(0.1, 0.3), not visited; not visited, not visited, max(0.5, 0.3).
    assert values.flatten().tolist() == pytest.approx([0.4, 0.3, 0.6, 0.4, 0.0, 0.5])
    assert asked == [[0.0, 1.0], [2.0]]


def test_a_cell_listed_twice_decays_once_and_takes_the_larger_value() -> None:
    values = torch.tensor([[0.8, 0.8]])
    update_values(values, [visit([0, 1, 0, 1])], lambda _: gives(0.1, 0.5, 0.2, 0.7), 0.5, skip_nan=True)
    assert values.tolist() == [pytest.approx([0.4, 0.7])]


@pytest.mark.parametrize("order", [(NAN, 0.1), (0.1, NAN)])
def test_a_cell_listed_twice_decays_even_if_one_visit_gives_nan(order: tuple[float, float]) -> None:
    values = torch.tensor([[0.8]])
    update_values(values, [visit([0, 0])], lambda _: gives(*order), 0.5, skip_nan=True)
    assert values.tolist() == [[pytest.approx(0.4)]]


def test_cell_marked_invisible_keeps_its_value() -> None:
    values = torch.tensor([[-1.0, 0.0, -1.0]])
    update_values(values, [visit([0, 1])], lambda _: gives(0.5, 0.5), 0.9, skip_nan=True)
    assert values.tolist() == [[-1.0, 0.5, -1.0]]


@pytest.mark.parametrize("skip_nan", [True, False])
def test_nan_is_skipped_or_stored_as_skip_nan_says(skip_nan: bool) -> None:
    values = torch.tensor([[0.5, 0.5]])
    update_values(values, [visit([0, 1])], lambda _: gives(NAN, INF), 0.5, skip_nan=skip_nan)
    assert values[0].tolist() == pytest.approx([0.5 if skip_nan else NAN, 1e10], nan_ok=True)


def test_occupancy_sampler_stores_nan() -> None:
    sampler = OccupancySampler(OccupancyConfig(resolution=8), Bounds(), torch.device("cpu"))
    sampler.update(lambda points: torch.where(points[:, 0] > 0, NAN, 1.0), seed=0, step=16)
    assert int(sampler.values.isnan().sum()) == 8**3 // 2


def test_level_without_visited_cells_is_not_evaluated() -> None:
    values = torch.tensor([[0.5], [0.5]])
    asked = []
    update_values(values, [visit([]), visit([0])], lambda x: (asked.append(len(x)), gives(0.7))[1], 0.9, skip_nan=True)
    assert asked == [1]
    assert values.tolist() == [[0.5], [pytest.approx(0.7)]]


def test_levels_are_visited_and_updated_one_after_another() -> None:
    """A generator of visits may then depend on the new values of the previous level, and random draws keep their
    order."""
    values = torch.zeros(2, 1)
    order = []

    def visits():  # type: ignore[no-untyped-def]
        for level in range(2):
            order.append(("visit", level, values[0].item()))
            yield visit([0])

    update_values(values, visits(), lambda _: (order.append("ask"), gives(1.0))[1], 0.9, skip_nan=True)
    assert order == [("visit", 0, 0.0), "ask", ("visit", 1, 1.0), "ask"]


def test_callback_gets_points_in_the_order_of_the_visited_cells() -> None:
    values = torch.zeros(1, 4)
    time = torch.tensor([0.0, 0.25, 0.5, 1.0])
    update_values(values, [visit([3, 2, 1, 0])], lambda x: x[:, 0] * time, 0.9, skip_nan=True)
    assert values.tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_wrong_number_of_occupancy_values_raises() -> None:
    with pytest.raises(ConfigError, match="`occupancy_fn` must give one value for each of 2 points, got 6"):
        update_values(torch.zeros(1, 4), [visit([0, 1])], lambda x: x, 0.9, skip_nan=True)


def test_limit_uses_the_mean_per_level_or_over_all_values() -> None:
    values = torch.tensor([[0.0, 0.2, 0.1], [4.0, 8.0, 6.0]])
    per_level = above_limit(values, 10.0)
    assert per_level.tolist() == [[False, True, False], [False, True, False]]
    over_all = above_limit(values.flatten(), 10.0)  # the mean is 3.05
    assert over_all.tolist() == [False] * 3 + [True] * 3
    assert above_limit(values, 0.05).tolist() == [[False, True, True], [True, True, True]]


def test_excluded_values_do_not_affect_the_mean() -> None:
    values = torch.tensor([-1.0, 0.2, 0.4, -1.0])
    assert above_limit(values, 10.0, values >= 0).tolist() == [False, False, True, False]  # above 0.3, not -0.35
    assert not above_limit(torch.full((3,), -1.0), 10.0, torch.zeros(3, dtype=torch.bool)).any()


def test_cell_index_runs_fastest_along_z() -> None:
    cells = torch.arange(24)
    x, y, z = grid_coordinates(cells, (2, 3, 4)).unbind(-1)
    assert torch.equal((x * 3 + y) * 4 + z, cells)
    assert (int(x.max()), int(y.max()), int(z.max())) == (1, 2, 3)
