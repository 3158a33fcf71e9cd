"""Sizes of pictures and the share of training."""

from __future__ import annotations

import pytest

from raymine.viewer.pacing import MOVING, Budget, Pace, Speed, size_of_stage


def test_picture_of_a_moving_camera_fits_the_speed_and_the_last_one_the_canvas() -> None:
    speed = Speed(1e5)
    width, height = size_of_stage(0, (800, 600), speed, 1024, 30.0)
    assert width * height == pytest.approx(1e5 * MOVING, rel=0.05)
    assert width / height == pytest.approx(4 / 3, rel=0.05)
    middle = size_of_stage(1, (800, 600), speed, 1024, 30.0)
    assert width < middle[0] < 800
    assert size_of_stage(2, (800, 600), speed, 1024, 30.0) == (800, 600)


def test_size_has_limits_in_both_directions() -> None:
    assert size_of_stage(2, (4000, 2000), Speed(1e12), 1000, 30.0) == (1000, 500)
    assert size_of_stage(0, (800, 600), Speed(1.0), 1024, 30.0) == (32, 24)
    assert size_of_stage(2, (800, 600), Speed(1e5), 1024, 1.0)[0] < 400
    assert size_of_stage(0, (0, 0), Speed(1e5), 1024, 1.0) == (1, 1)


def test_speed_follows_measurements() -> None:
    speed = Speed(1e5)
    for _ in range(30):
        speed.measured(10_000, 0.01)
    assert speed.rays_per_second == pytest.approx(1e6, rel=0.01)
    speed.measured(3, 1.0)
    assert speed.seconds(10_000) == pytest.approx(0.01, rel=0.01)


def test_drawing_takes_at_most_its_share() -> None:
    budget, drawn, trained = Budget(0.1), 0.0, 0.0
    for _ in range(5000):
        trained += 0.05
        budget.earn(0.05)
        if budget.affords(0.3):
            budget.spend(0.3)
            drawn += 0.3
    assert 0.095 < drawn / (drawn + trained) <= 0.1


def test_unspent_credit_is_bounded() -> None:
    budget = Budget(0.1, most=2.0)
    budget.earn(1e6)
    assert budget.credit == 2.0
    assert budget.affords(50.0)
    budget.spend(50.0)
    assert not budget.affords(0.01)


def test_delay_is_what_steps_after_a_picture_take_longer() -> None:
    pace = Pace()
    assert pace.delay(9.0, 1, after_picture=True) == 0.0
    assert pace.delay(0.2, 4, after_picture=False) == 0.0
    assert pace.delay(0.5, 4, after_picture=True) == pytest.approx(0.3)
    assert pace.delay(0.1, 4, after_picture=True) == 0.0
    assert pace.seconds == pytest.approx(0.05)


def test_pace_follows_steps_without_pictures() -> None:
    pace = Pace()
    for _ in range(100):
        pace.delay(0.1, 1, after_picture=False)
        pace.delay(5.0, 1, after_picture=True)
    assert pace.seconds == pytest.approx(0.1)
