"""The ngp recipes: step lengths and grid resolution derived from the scene, and limits of useful steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymine import recipes
from raymine.contracts import Bounds, Scene
from raymine.step import TrainConfig
from support.scenes import ball_scene

SCENE, _ = ball_scene()
SIDE = max(b - a for a, b in zip(SCENE.bounds.low, SCENE.bounds.high, strict=True))


def seen_by(pixels: float) -> Scene:
    """The scene with focal lengths multiplied by `pixels`."""
    return replace(SCENE, cameras=tuple(replace(c, fx=c.fx * pixels, fy=c.fy * pixels) for c in SCENE.cameras))


def samples_of(config: TrainConfig) -> float:
    """Number of samples across the box."""
    return SIDE / config.sampler.step


def test_large_recipe_has_1_5_samples_per_finest_cell_and_at_least_600() -> None:
    ended = set()
    for pixels in (1.0, 30.0, 1000.0):
        small, large = (recipes.build(name, seen_by(pixels), "cuda") for name in ("ngp", "ngp-large"))
        finest = large.field.grid.finest
        assert finest == small.field.grid.finest
        assert samples_of(small) == pytest.approx(600)
        assert samples_of(large) == pytest.approx(max(600, 1.5 * finest))
        ended.add(finest)
    assert min(ended) < 400 < max(ended)


def test_recipes_share_the_sampler_settings_in_unbounded_scenes() -> None:
    bounds = SCENE.bounds
    scene = replace(seen_by(1000.0), bounds=Bounds(bounds.low, bounds.high, levels=3))
    small, large = (recipes.build(name, scene, "cuda") for name in ("ngp", "ngp-large"))
    assert small.sampler == large.sampler
    assert small.sampler.cone > 0


def test_only_the_large_bounded_recipe_has_max_useful_steps() -> None:
    bounds = SCENE.bounds
    unbounded = replace(SCENE, bounds=Bounds(bounds.low, bounds.high, levels=3))
    cases = [
        (name, scene, device)
        for name in ("ngp", "ngp-large")
        for scene in (SCENE, unbounded)
        for device in ("cpu", "cuda")
    ]
    limited = [case for case in cases if recipes.build(*case).max_useful_steps]
    assert limited == [("ngp-large", SCENE, "cuda")]
