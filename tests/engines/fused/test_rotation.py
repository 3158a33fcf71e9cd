"""The schedule of bands that are on the device."""

from __future__ import annotations

import numpy as np
import pytest

from raymine.engines.fused.rotation import AHEAD, MOST_MOVED, STEPS, Rotation, cut_bands, plan_rotation
from raymine.errors import ResourceError

SIZES = np.array([[30, 40], [61, 20], [30, 40]])


def test_bands_tile_every_image_with_equal_shares() -> None:
    bands = cut_bands(SIZES, pixels=200)
    assert np.bincount(bands.image).tolist() == [6, 6, 6], "equally many of each image, whatever its size"
    for image, (height, width) in enumerate(SIZES):
        own = bands.image == image
        assert bands.top[own].tolist() == [0, *np.cumsum(bands.height[own])[:-1].tolist()]
        assert bands.height[own].sum() == height
        assert np.ptp(bands.height[own]) <= 1
        assert set(bands.width[own]) == {width}
    assert bands.largest == (bands.height * bands.width).max()


def test_image_of_few_rows_has_a_band_for_each_row_at_most() -> None:
    assert len(cut_bands(np.array([[2, 1000], [50, 1000]]), pixels=10)) == 4


def test_every_band_is_drawn_from_for_the_same_time() -> None:
    rotation = Rotation(bands=37, window=11, moved=3, seed=5)
    counts = np.zeros(37, int)
    for turn in range(37 * 4):
        np.add.at(counts, rotation.bands_at(rotation.positions(turn)), 1)
    # Each stays in the window for 11 positions; the first and the last window are cut off.
    assert abs(counts - counts.mean()).max() <= 11
    assert rotation.steps_a_round == -(-37 * STEPS // 3)
    one_round = rotation.bands_at(np.arange(37))
    assert sorted(one_round) == list(range(37))
    assert one_round.tolist() != rotation.bands_at(np.arange(37, 74)).tolist(), "each round has another order"


def test_what_arrives_takes_the_slots_of_what_leaves_and_memory_that_nobody_reads() -> None:
    rotation = Rotation(bands=50, window=12, moved=3, seed=1)
    for turn in range(1, 60):
        arriving = rotation.arriving(turn)
        left = np.setdiff1d(rotation.positions(turn - 1), rotation.positions(turn))
        assert set(rotation.slots(arriving)) == set(rotation.slots(left))
        # It is read ahead while these windows are drawn from.
        for earlier in range(max(0, turn - AHEAD), turn):
            assert not set(rotation.regions(arriving)) & set(rotation.regions(rotation.positions(earlier)))
        assert len(set(rotation.regions(rotation.positions(turn)))) == 12
        assert rotation.regions(arriving).max() < rotation.places


def test_window_is_a_function_of_seed_and_turn() -> None:
    def bands(seed: int, turns: list[int]) -> list[list[int]]:
        rotation = Rotation(bands=40, window=8, moved=2, seed=seed)
        return [rotation.bands_at(rotation.positions(turn)).tolist() for turn in turns]

    assert bands(3, [0, 7, 200, 7])[1::2] == bands(3, [7, 7])
    assert bands(3, [500]) == bands(3, list(range(501)))[-1:]
    assert bands(3, [0]) != bands(4, [0])


def test_plan_fills_the_memory_and_not_more() -> None:
    bands = cut_bands(np.array([[3000, 4000]] * 300))
    for memory in (200 << 20, 2 << 30, 5 << 30):
        rotation = plan_rotation(bands, memory, 4, 0)
        used = rotation.places * bands.largest * 4
        assert memory - bands.largest * 4 < used <= memory
        assert 1 <= rotation.moved <= MOST_MOVED
        assert rotation.window >= 0.8 * rotation.places


def test_too_little_memory_is_refused_with_what_is_needed() -> None:
    bands = cut_bands(np.array([[3000, 4000]] * 3))
    with pytest.raises(ResourceError, match=r"need at least 5\.0 MiB on the device, and have 4\.0 MiB"):
        plan_rotation(bands, 4 << 20, 4, 0)
