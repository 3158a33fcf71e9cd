"""Recipes as names, import paths, functions and configs: building, naming, and errors of broken ones."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymine import recipes
from raymine.contracts import Scene
from raymine.errors import ConfigError, speaking_of_flags
from raymine.step import TrainConfig
from support.scenes import SCENE, look_at

MODULE = """
from raymine.step import TrainConfig

CONFIG = TrainConfig(deterministic=True)
NUMBER = 3


def good(scene, device):
    return TrainConfig(amp="fp16" if device == "cuda" else "fp32")


def raises(scene, device):
    frames = scene.frames
    return frames[9]


def refused(scene, device):
    return TrainConfig(amp="fp12")


def quits(scene, device):
    raise SystemExit(2)


def nothing(scene, device):
    pass


def one_argument(scene):
    return CONFIG
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package `own_recipes` with the modules `mine` and `broken`."""
    folder = tmp_path / "own_recipes"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "mine.py").write_text(MODULE)
    (folder / "broken.py").write_text("import raymine\n\nraymine.no_such_name\n")
    (folder / "torn.py").write_text("def half(:\n")
    (folder / "lacking.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [n for n in sys.modules if n.partition(".")[0] == "own_recipes"]:
        del sys.modules[name]


def own(scene: Scene, device: str) -> TrainConfig:
    return TrainConfig(deterministic=True)


def test_build_accepts_names_import_paths_functions_and_configs() -> None:
    assert recipes.build("ngp", SCENE, "cpu") == recipes.RECIPES["ngp"](SCENE, "cpu")
    assert recipes.build("own_recipes.mine:good", SCENE, "cuda").amp == "fp16"
    assert recipes.build("own_recipes.mine:CONFIG", SCENE, "cpu") == TrainConfig(deterministic=True)
    assert recipes.build(own, SCENE, "cpu") == TrainConfig(deterministic=True)
    config = TrainConfig(amp="bf16")
    assert recipes.build(config, SCENE, "cpu") is config
    assert recipes.build(lambda scene, device: config, SCENE, "cpu") is config


def test_names_and_packages_of_every_kind_of_recipe() -> None:
    assert recipes.name_of("ngp") == recipes.name_of(recipes.RECIPES["ngp"]) == "ngp"
    assert recipes.name_of("own_recipes.mine:good") == "own_recipes.mine:good"
    assert recipes.name_of(own) == f"{__name__}:own"
    for nameless in (TrainConfig(), lambda scene, device: TrainConfig(), functools.partial(own)):
        assert recipes.name_of(nameless) == "custom"
    assert recipes.packages_of("own_recipes.mine:good") == ("own_recipes",)
    assert recipes.packages_of("ngp") == recipes.packages_of(TrainConfig()) == recipes.packages_of("__main__:f") == ()
    assert recipes.packages_of(own) == (__name__.partition(".")[0],)


def test_recipes_of_entry_points_are_listed_and_built(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", "own_recipes.mine:good", "raymine.recipes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert recipes.names() == sorted(["mine", *recipes.RECIPES])
    assert "own_recipes.mine" not in sys.modules, "listing names imports nothing"
    assert recipes.build("mine", SCENE, "cpu").amp == "fp32"
    assert recipes.name_of("mine") == "mine"
    with pytest.raises(ConfigError, match=r"no recipe `mime`\. Did you mean `mine`\?\nThere is: dynamic, mine, ngp"):
        recipes.build("mime", SCENE, "cpu")


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("npg", "there is no recipe `npg`"),
        ("own_recipes.mine.good", "A function of your own is package.module:function"),
        ("own_recipes.missing:good", "`recipe='own_recipes.missing:good'` .* there is no module `own_recipes.missing`"),
        ("no_such_package.x:good", "there is no module `no_such_package`"),
        ("own_recipes.mine:god", "`own_recipes.mine` has no `god`. Did you mean `good`\\?"),
        ("own_recipes.mine:NUMBER", "`NUMBER` must be a function .* and is a int"),
        ("own_recipes.mine:", "must look like package.module:function"),
        (":good", "must look like package.module:function"),
        ("own_recipes.broken:f", r"importing `own_recipes.broken` failed: AttributeError: .*broken.py, line 3"),
        ("own_recipes.torn:f", r"importing `own_recipes.torn` failed: SyntaxError: .*torn.py, line 1"),
        ("own_recipes.lacking:f", "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"),
        ("own_recipes.mine:raises", r"failed: IndexError: .*mine.py, line 14\)"),
        ("own_recipes.mine:refused", r"`own_recipes.mine:refused` failed: `amp` must be .*mine.py, line 18\)"),
        ("own_recipes.mine:quits", "`own_recipes.mine:quits` failed: SystemExit: 2"),
        ("own_recipes.mine:nothing", "must return a TrainConfig, and returned a NoneType"),
        ("own_recipes.mine:one_argument", "failed: TypeError: one_argument.. takes 1 positional argument"),
        (3, "`recipe` must be a name, a function .* got int"),
    ],
)
def test_broken_recipe_error_names_the_cause_and_line(recipe: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipes.build(recipe, SCENE, "cpu")
    assert re.search(words, str(caught.value))


def test_error_on_the_command_line_names_the_flag() -> None:
    with (
        speaking_of_flags(),
        pytest.raises(ConfigError, match=r"^--recipe a.b:c was asked for, but there is no module"),
    ):
        recipes.build("a.b:c", SCENE, "cpu")


def test_twin_of_is_an_earlier_recipe_with_the_same_config() -> None:
    ngp, large = (recipes.build(name, SCENE, "cpu") for name in ("ngp", "ngp-large"))
    assert recipes.twin_of("ngp", ngp, SCENE, "cpu") is None
    assert recipes.twin_of("ngp-large", large, SCENE, "cpu") == "ngp"
    assert recipes.twin_of(ngp, ngp, SCENE, "cpu") == "ngp"
    assert recipes.twin_of(own, replace(ngp, deterministic=True), SCENE, "cpu") is None
    assert recipes.twin_of("ngp-large", recipes.build("ngp-large", SCENE, "cuda"), SCENE, "cuda") is None


def test_reason_of_the_choice_names_forward_facing_captures() -> None:
    frame = SCENE.frames[0]
    poses = [frame.pose + np.array([[0, 0, 0, x], [0, 0, 0, y], [0, 0, 0, 0]]) for x in (0.0, 0.3) for y in (0.0, 0.2)]
    unbounded = replace(SCENE.bounds, levels=3)
    forward = replace(SCENE, bounds=unbounded, frames=tuple(replace(frame, pose=pose) for pose in poses))
    name, reason = recipes.chosen_for(forward)
    assert name == "unbounded"
    assert "forward-facing" in reason
    ring = [look_at(4 * np.array([np.cos(a), np.sin(a), 0.2])) for a in np.arange(6.0)]
    inward = replace(forward, frames=tuple(replace(frame, pose=pose) for pose in ring))
    assert recipes.chosen_for(inward) == ("unbounded", "the scene has a background without a box around it")
    assert recipes.chosen_for(SCENE) == ("ngp", "the scene fits into a box")
