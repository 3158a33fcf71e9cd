"""Requests for views: what they mean, and which field is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from raymine.cameras import from_normalised, look_at
from raymine.errors import ConfigError
from raymine.serve.request import parse_request
from support.novel_views import forward_scene

SCENE = forward_scene()
POSE = look_at((0.3, -3.0, 1.0), (0.0, 0.0, 0.0))
ROWS: list[Any] = from_normalised(SCENE, POSE).tolist()
AT = {"position": [0.0, -3.0, 1.0], "target": [0.0, 0.0, 0.0], "world": "raymine"}


def test_pose_of_the_scene_is_normalised_and_4x4_is_accepted() -> None:
    for rows in (ROWS, [*ROWS, [0, 0, 0, 1]]):
        np.testing.assert_allclose(parse_request({"pose": rows}, SCENE, 10**7).pose, POSE, atol=1e-9)
    same = parse_request({"pose": POSE.tolist(), "world": "raymine"}, SCENE, 10**7)
    np.testing.assert_allclose(same.pose, POSE, atol=1e-12)


def test_position_and_target_look_at_the_target() -> None:
    found = parse_request(AT, SCENE, 10**7)
    np.testing.assert_allclose(found.pose, look_at((0.0, -3.0, 1.0), (0.0, 0.0, 0.0)), atol=1e-9)
    turned = parse_request({**AT, "up": [1, 0, 0]}, SCENE, 10**7)
    assert turned.pose[0, 1] > 0.9


def test_size_and_field_of_view() -> None:
    found = parse_request({**AT, "width": 64, "height": 48, "fov": 90}, SCENE, 10**7).camera
    assert (found.width, found.height) == (64, 48)
    assert found.fy == pytest.approx(24)
    focal = parse_request({**AT, "width": 64, "height": 48, "focal": 50.0}, SCENE, 10**7).camera
    assert (focal.fx, focal.fy, focal.cx) == (50.0, 50.0, 32.0)
    base = SCENE.cameras[0]
    default = parse_request(AT, SCENE, 10**7)
    assert (default.camera.width, default.format, default.kind, default.quality) == (base.width, "png", "colour", 90)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 100_000, "height": 100_000}, "is too large"),
        ({"width": 10**300, "height": 10**300}, "is too large"),
        ({"width": 0}, "at least 1x1"),
        ({"width": 2.5}, "`width` must be a whole number"),
        ({"width": "64"}, "`width` must be a whole number"),
        ({"width": True}, "`width` must be a whole number"),
        ({"fov": 0}, "1 to 170"),
        ({"fov": math.nan}, "`fov` must be a finite number"),
        ({"fov": 50, "focal": 50}, "either `fov` or `focal`"),
        ({"focal": 1e-30}, "`focal` is in pixels"),
        ({"format": "gif"}, "`format` must be one of png, jpeg"),
        ({"format": ["png"]}, "`format` must be one of"),
        ({"kind": "colours"}, "`kind` must be one of colour"),
        ({"quality": 0}, "`quality` must be between"),
        ({"time": 2}, "`time` must be in 0..1"),
        ({"background": [2, 0, 0]}, "`background` must be red"),
        ({"background": {"r": 1}}, "`background` must be an array"),
        ({"world": "mars"}, "`world` must be one of"),
        ({"pose": ROWS}, "either `pose`, or"),
        ({"position": None}, "where the camera stands"),
        ({"position": [0, 0]}, "`position` must be a list of three"),
        ({"position": [0, 0, "1"]}, "`position` must be a finite number"),
        ({"position": [1e300, 0, 0]}, "beyond any scene"),
        ({"position": [0, 0, 0]}, "target"),
        ({"widht": 3}, "There is no field `widht`. Did you mean `width`?"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_request({**AT, **change}, SCENE, 10**7)


@pytest.mark.parametrize(
    "pose",
    [
        3,
        "x",
        [],
        [[1, 2], [3]],
        [[1, 0, 0, 0]] * 3,
        [["a"] * 4] * 3,
        [[True] * 4] * 3,
        [[math.inf] * 4] * 3,
        [[[]]],
        {},
    ],
)
def test_malformed_poses_are_refused(pose: Any) -> None:
    with pytest.raises(ConfigError, match="pose"):
        parse_request({"pose": pose}, SCENE, 10**7)


@pytest.mark.parametrize("body", [None, [], 3, "x"])
def test_body_must_be_an_object(body: Any) -> None:
    with pytest.raises(ConfigError, match="must be a JSON object"):
        parse_request(body, SCENE, 10**7)
