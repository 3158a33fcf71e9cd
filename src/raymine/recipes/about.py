"""What each recipe is for, in words: `raymine recipes` shows it, and nothing else depends on it.

A recipe is described where it is written:

    @described("the hash grid", scenes="in a box", time="seconds on a GPU", figure="lego 35 dB after 10 s (H200)")
    def own(scene: Scene, device: str) -> TrainConfig: ...

One without a description is listed with the first sentence of its docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from raymine.contracts import Scene
from raymine.step import TrainConfig

_Recipe = TypeVar("_Recipe", bound=Callable[[Scene, str], TrainConfig])


@dataclass(frozen=True)
class About:
    """summary: the model in a few words. scenes: what it is for. time: until it is good. figure: a measured score.

    page: its page below docs/recipes, without the suffix.
    """

    summary: str
    scenes: str = ""
    time: str = ""
    figure: str = ""
    page: str = ""


_ABOUT: dict[object, About] = {}


def described(summary: str, *, scenes: str, time: str, figure: str, page: str = "") -> Callable[[_Recipe], _Recipe]:
    """A decorator that describes a recipe function. See `About`."""

    def describe(recipe: _Recipe) -> _Recipe:
        _ABOUT[recipe] = About(summary, scenes, time, figure, page or recipe.__module__.rpartition(".")[2])
        return recipe

    return describe


def about(recipe: object) -> About:
    """The description of a recipe function; if it has none, the first sentence of its docstring."""
    found = _ABOUT.get(recipe)
    if found is not None:
        return found
    text = inspect.cleandoc(getattr(recipe, "__doc__", None) or "")
    first = " ".join(text.split("\n\n")[0].split())
    return About(first.split(". ")[0].rstrip("."))
