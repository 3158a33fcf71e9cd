"""Recipes: functions that return a complete training config for a scene on a device."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.recipes.ngp import ngp, ngp_large
from raymine.step import TrainConfig

Recipe = Callable[[Scene, str], TrainConfig]

RECIPES: dict[str, Recipe] = {"ngp": ngp, "ngp-large": ngp_large}


def names() -> list[str]:
    """Every recipe, by the name a user types."""
    return sorted(RECIPES)


def build(name: str, scene: Scene, device: str) -> TrainConfig:
    """The config of recipe `name` for this scene on `device` ("cpu" or "cuda")."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"Did you mean `{close[0]}`?" if close else f"There is: {', '.join(names())}."
        raise ConfigError(f"there is no recipe `{name}`.", hint=hint)
    return RECIPES[name](scene, device)
