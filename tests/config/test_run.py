"""Every number of every config must be finite."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from raymine import recipes
from raymine.config import Every, RunConfig
from raymine.errors import ConfigError
from raymine.step import TrainConfig
from support.scenes import SCENE


def configs(value: Any) -> Iterator[Any]:
    """All dataclasses within `value`, itself included."""
    if isinstance(value, tuple):
        for item in value:
            yield from configs(item)
    elif dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from configs(getattr(value, field.name))


def float_fields() -> list[Any]:
    """Each field of type `float` in the configs of all recipes, with a config to change."""
    moving = tuple(replace(frame, time=i / len(SCENE.frames)) for i, frame in enumerate(SCENE.frames))
    scenes = {
        "unbounded": replace(SCENE, bounds=replace(SCENE.bounds, levels=2)),
        "dynamic": replace(SCENE, frames=moving),
    }
    trained = [
        recipes.build(name, scenes.get(name, SCENE), device) for name in recipes.RECIPES for device in ("cpu", "cuda")
    ]
    run = RunConfig("builtin", "ngp", TrainConfig(), max_seconds=1.0)
    found = {
        (type(config), field.name): config
        for whole in (*trained, run, Every())
        for config in configs(whole)
        for field in dataclasses.fields(config)
        if float in (hint := typing.get_type_hints(type(config))[field.name], *typing.get_args(hint))
    }
    return [pytest.param(config, name, id=f"{cls.__name__}.{name}") for (cls, name), config in found.items()]


@pytest.mark.parametrize(("config", "name"), float_fields())
def test_non_finite_number_is_refused_by_its_config(config: Any, name: str) -> None:
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(ConfigError, match=f"`{name}`.*got {value}"):
            dataclasses.replace(config, **{name: value})


def test_walk_finds_the_numbers_of_all_kinds_of_config() -> None:
    found = {param.id for param in float_fields()}
    expected = "OptimiserConfig.lr OccupancyConfig.step ColourLoss.delta CoarseColourLoss.weight HardConfig.rate"
    assert found >= {*expected.split(), "PixelConfig.image_limit", "MiningConfig.stop", "Every.seconds"}
