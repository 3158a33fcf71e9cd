"""Intrinsics as files state them."""

from __future__ import annotations

import math

import pytest

from raymine.scenes.parsed import Intrinsics


def test_focal_length_follows_from_the_angle_of_view() -> None:
    camera = Intrinsics(angle_x=math.pi / 2).camera(200, 100)
    assert (camera.fx, camera.fy) == pytest.approx((100.0, 100.0))


def test_angle_of_view_of_zero_gives_an_infinite_focal_length() -> None:
    assert Intrinsics(angle_x=0.0).camera(8, 8).fx == math.inf
