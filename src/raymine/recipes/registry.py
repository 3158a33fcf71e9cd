"""The registry of recipes. A recipe is given as a name, as a function, or as a complete config."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from raymine.config.types import describe, import_module, registered_recipes
from raymine.contracts import Scene
from raymine.errors import ConfigError, did_you_mean, option
from raymine.recipes.dynamic import dynamic
from raymine.recipes.ngp import ngp, ngp_large
from raymine.recipes.planes import planes
from raymine.recipes.proposal import proposal
from raymine.recipes.unbounded import unbounded
from raymine.recipes.vanilla import vanilla, vanilla_grid
from raymine.recipes.voxels import voxels
from raymine.scenes.normalise import find_placement
from raymine.step import TrainConfig

Recipe = Callable[[Scene, str], TrainConfig]
"""A function (scene, device) -> complete training config; device is "cpu" or "cuda"."""

AnyRecipe: TypeAlias = str | Recipe | TrainConfig
"""A registered name, `package.module:function`, a recipe function, or a complete config."""

RECIPES: dict[str, Recipe] = {
    "ngp": ngp,
    "ngp-large": ngp_large,
    "unbounded": unbounded,
    "proposal": proposal,
    "vanilla": vanilla,
    "vanilla-grid": vanilla_grid,
    "dynamic": dynamic,
    "planes": planes,
    "voxels": voxels,
}
"""raymine's own recipes, by name. Other packages register theirs under the entry-point group `raymine.recipes`."""

AUTO = "auto"
"""Instead of a recipe: the one that `chosen_for` finds for the scene."""

CUSTOM = "custom"
"""The recipe name of a run that was given a config, or a function without a name."""


def chosen_for(scene: Scene) -> tuple[str, str]:
    """The name of the recipe for a scene for which the user names none, and the reason in words."""
    if scene.moves:
        return "dynamic", "frames have different times, so the scene moves"
    if scene.bounds.unbounded:
        if find_placement(np.stack([frame.pose for frame in scene.frames])).layout == "forward":
            return "unbounded", "the capture is forward-facing: all cameras look one way, and nothing bounds the depth"
        return "unbounded", "the scene has a background without a box around it"
    return "ngp", "the scene fits into a box"


def names() -> list[str]:
    """The names of all registered recipes."""
    return sorted({*RECIPES, *registered_recipes()})


def name_of(recipe: AnyRecipe) -> str:
    """What a run records as its recipe: a registered name, `package.module:function`, or "custom"."""
    if isinstance(recipe, str):
        return recipe
    for name, own in RECIPES.items():
        if own is recipe:
            return name
    module, name = getattr(recipe, "__module__", None), getattr(recipe, "__qualname__", "")
    return f"{module}:{name}" if module and name.isidentifier() else CUSTOM


def packages_of(recipe: AnyRecipe) -> tuple[str, ...]:
    """Packages that may be imported for this recipe, because the caller named them with it."""
    package = name_of(recipe).rpartition(":")[0].partition(".")[0]
    return (package,) if package.isidentifier() and package != "__main__" else ()


def find(recipe: AnyRecipe) -> Recipe | TrainConfig:
    """The recipe for a name, function or config. A named module is imported. `ConfigError` if there is none."""
    if not isinstance(recipe, str):
        if isinstance(recipe, TrainConfig) or callable(recipe):
            return recipe
        raise ConfigError(
            f"{option('recipe')} must be a name, a function (scene, device) -> TrainConfig or a TrainConfig, "
            f"got {type(recipe).__name__}."
        )
    if recipe in RECIPES:
        return RECIPES[recipe]
    module, colon, attribute = recipe.partition(":")
    if not colon:
        entry = registered_recipes().get(recipe)
        if entry is None:
            there = f"There is: {', '.join(names())}. A function of your own is package.module:function."
            meant = did_you_mean(recipe, names())
            raise ConfigError(f"{option('recipe')}: there is no recipe `{recipe}`.{meant}", hint=there)
        module, _, attribute = entry.value.partition(":")
    return _imported(recipe, module.strip(), attribute.strip())


def build(recipe: AnyRecipe, scene: Scene, device: str) -> TrainConfig:
    """The config of `recipe` for this scene on `device` ("cpu" or "cuda").

    If a user's function fails, `ConfigError` says how, with file and line.
    """
    found, name = find(recipe), name_of(recipe)
    if isinstance(found, TrainConfig):
        return found
    if found in RECIPES.values():
        return found(scene, device)
    try:
        config: Any = found(scene, device)
    except (Exception, SystemExit) as error:
        file = getattr(getattr(found, "__code__", None), "co_filename", None)
        raise ConfigError(f"The recipe `{name}` failed: {describe(error, file)}.") from error
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"The recipe `{name}` must return a TrainConfig, and returned a {type(config).__name__}.")
    return config


def twin_of(recipe: AnyRecipe, config: TrainConfig, scene: Scene, device: str) -> str | None:
    """The name of an earlier recipe of raymine that gives the same config for this scene and device; None if none."""
    for name, own in RECIPES.items():
        if name == name_of(recipe):
            return None
        # A recipe may refuse a scene, and is no twin then.
        with contextlib.suppress(ConfigError):
            if own(scene, device) == config:
                return name
    return None


def _imported(recipe: str, module_name: str, attribute: str) -> Recipe | TrainConfig:
    asked = option("recipe", recipe)
    if not module_name or not attribute.isidentifier():
        raise ConfigError(f"{asked} must look like package.module:function.")
    module = import_module(module_name, f"{asked} was asked for")
    found = getattr(module, attribute, None)
    if found is None:
        known = [name for name, value in vars(module).items() if callable(value) or isinstance(value, TrainConfig)]
        raise ConfigError(f"{asked}: `{module_name}` has no `{attribute}`.{did_you_mean(attribute, known)}")
    if not (callable(found) or isinstance(found, TrainConfig)):
        raise ConfigError(
            f"{asked}: `{attribute}` must be a function (scene, device) -> TrainConfig or a TrainConfig, and is a "
            f"{type(found).__name__}."
        )
    recipe_found: Recipe | TrainConfig = found
    return recipe_found
