"""Schedules by share of the horizon: open levels and image sizes."""

from __future__ import annotations

import pytest

from raymine.errors import ConfigError
from raymine.step.schedule import FadeConfig, ProgressiveConfig


def test_levels_open_over_a_share_of_the_run() -> None:
    fade = FadeConfig(coarse=0.25, fade=0.5)
    assert [fade.open_share(step, 100) for step in (0, 25, 50, 99)] == [0.25, 0.625, 1.0, 1.0]


def test_images_grow() -> None:
    progressive = ProgressiveConfig((4, 2), (0.2, 0.5))
    assert [progressive.factor(share) for share in (0.0, 0.19, 0.2, 0.49, 0.5, 1.0)] == [4, 4, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("factors", "until"), [((), ()), ((4,), (0.2, 0.5)), ((1,), (0.5,)), ((4, 2), (0.5, 0.2)), ((2,), (1.0,))]
)
def test_progressive_refuses_nonsense(factors: tuple[int, ...], until: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="progressive needs"):
        ProgressiveConfig(factors, until)


@pytest.mark.parametrize(("coarse", "fade"), [(-0.1, 0.5), (0.5, 0.0), (0.5, 1.1)])
def test_fade_refuses_nonsense(coarse: float, fade: float) -> None:
    with pytest.raises(ConfigError, match="fade needs"):
        FadeConfig(coarse, fade)
