"""Placement of scenes: captures whose centre, up direction and depth are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymine.cameras import look_at
from raymine.scenes.normalise import find_placement, meeting_point

UP = np.array([0.2, -0.3, 0.9]) / np.linalg.norm([0.2, -0.3, 0.9])


def frame_of(up: np.ndarray) -> np.ndarray:
    """Some rotation [3, 3] whose last column is `up`."""
    side = np.cross(up, [1.0, 0.0, 0.0])
    side /= np.linalg.norm(side)
    return np.stack([np.cross(side, up), side, up], axis=1)


def arc(centre: np.ndarray, radius: float, degrees: float, height: float = 0.3, count: int = 20) -> np.ndarray:
    basis = frame_of(UP)
    angles = np.radians(np.linspace(0, degrees, count, endpoint=degrees < 360))
    local = np.stack([np.cos(angles), np.sin(angles), np.full(count, height)], axis=1) * radius
    return np.stack([look_at(centre + basis @ p, centre, UP) for p in local])


@settings(max_examples=20, deadline=None)
@given(st.floats(-50, 50), st.floats(0.01, 100), st.sampled_from([60.0, 120.0, 360.0]))
def test_inward_captures_find_centre_unit_and_up(offset: float, radius: float, degrees: float):
    centre = np.array([offset, -offset / 2, 3.0])
    place = find_placement(arc(centre, radius, degrees))
    assert place.layout == "inward"
    assert np.linalg.norm(place.centre - centre) < 1e-3 * radius
    assert place.distance == pytest.approx(radius * np.sqrt(1.09), rel=1e-3)
    # The up direction is found although all of these cameras look down.
    assert place.up @ UP > np.cos(np.radians(1.0))


def test_few_cameras_that_look_elsewhere_do_not_move_the_centre():
    poses = arc(np.zeros(3), 2.0, 360, count=30)
    for i in (3, 4, 5):
        poses[i] = look_at(poses[i][:, 3], np.array([9.0, 9.0, 9.0]), UP)
    plain = arc(np.zeros(3), 2.0, 360, count=30)
    assert np.linalg.norm(find_placement(poses).centre) < 0.1
    assert np.linalg.norm(find_placement(plain).centre) < 1e-9


def forward(count: int = 15, spread: float = 1.0, wobble: float = 0.02) -> np.ndarray:
    rng = np.random.default_rng(0)
    positions = np.concatenate([rng.uniform(-spread, spread, (count, 2)), np.zeros((count, 1))], axis=1)
    targets = positions + [0, 0, -1] + rng.normal(size=(count, 3)) * wobble
    return np.stack([look_at(p, t, np.array([0.0, 1.0, 0.0])) for p, t in zip(positions, targets, strict=True)])


def test_forward_facing_captures_take_their_depth_from_the_content():
    place = find_placement(forward(), near=10.0, far=40.0)
    assert place.layout == "forward"
    depth = 1 / (0.25 / 10 + 0.75 / 40)
    assert place.distance == pytest.approx(depth)
    assert place.centre[2] == pytest.approx(-depth, rel=0.05)
    assert place.up == pytest.approx([0, 1, 0], abs=0.05)


def test_parallel_or_single_cameras_get_a_finite_placement():
    for poses in (forward(wobble=0.0), forward(count=1), np.repeat(forward(count=1), 5, axis=0)):
        place = find_placement(poses)
        assert place.layout == "forward"
        assert np.isfinite(place.centre).all()
        assert place.distance > 0
        assert place.centre[2] < 0


def test_outward_captures_are_centred_on_the_cameras():
    ring = arc(np.array([1.0, 2.0, 3.0]), 0.5, 360, height=0.0)
    outward = ring * [-1, 1, -1, 1]
    place = find_placement(outward)
    assert place.layout == "outward"
    assert np.linalg.norm(place.centre - [1.0, 2.0, 3.0]) < 0.1
    assert place.distance >= 1.0


def test_meeting_point_of_two_lines_matches_hand_computation():
    point, spread = meeting_point(np.array([[0.0, 0, 0], [2.0, 5, 0]]), np.array([[1.0, 0, 0], [0, 1.0, 0]]))
    assert point == pytest.approx([2, 0, 0], abs=1e-9)
    assert spread == pytest.approx(0.5)
    _, parallel = meeting_point(np.array([[0.0, 0, 0], [0.0, 1, 0]]), np.array([[1.0, 0, 0], [1.0, 0, 0]]))
    assert parallel == pytest.approx(0.0, abs=1e-12)
