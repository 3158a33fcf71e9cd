"""Configurations of every way to draw hard samples, and a mark that runs a test with each of them."""

from __future__ import annotations

import pytest

from raymine.mining import HardConfig

EVERY_DRAW = [
    HardConfig(draw="poisson"),
    HardConfig(draw="systematic"),
    HardConfig(draw="multinomial"),
    HardConfig(draw="poisson", reweight="none"),
    HardConfig(draw="systematic", reweight="none"),
    HardConfig(draw="multinomial", reweight="none"),
    HardConfig(draw="topk", reweight="none"),
]
UNBIASED = EVERY_DRAW[:3]


def name_of(config: HardConfig) -> str:
    return f"{config.draw}-{config.reweight}"


each_draw = pytest.mark.parametrize("config", EVERY_DRAW, ids=name_of)
