"""Descriptions of recipes."""

from __future__ import annotations

from pathlib import Path

import raymine
from raymine.contracts import Scene
from raymine.recipes import RECIPES, About, about, described
from raymine.step import TrainConfig

DOCS = Path(raymine.__file__).parents[2] / "docs" / "recipes"


def test_every_recipe_has_a_summary_and_a_page_that_exists() -> None:
    for name, recipe in RECIPES.items():
        known = about(recipe)
        assert known.summary, name
        if known.page:
            assert (DOCS / f"{known.page}.md").exists(), name


def test_docstring_stands_in_for_a_description() -> None:
    def own(scene: Scene, device: str) -> TrainConfig:
        """A recipe of one's own. More about it.

        And more.
        """
        return TrainConfig()

    assert about(own) == About("A recipe of one's own")
    again = described("words", scenes="boxes", time="now", figure="1 dB")(own)
    assert again is own
    assert about(own) == About("words", "boxes", "now", "1 dB", "test_about")
