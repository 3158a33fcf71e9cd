"""`raymine recipes`: list the recipes, with what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import output

if TYPE_CHECKING:
    from raymine.contracts import Scene
    from raymine.recipes import Recipe

_VIEWS, _SIZE = 100, 800
_DOCS = "docs/recipes"


@dataclass(frozen=True)
class Recipes:
    """List the recipes of `raymine train --recipe`: for which scenes, memory, time and a measured figure."""

    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.config.types import registered_recipes
        from raymine.recipes import RECIPES

        rows = [_row(name, recipe) for name, recipe in RECIPES.items()]
        # Other packages are not imported to be listed: that would run their code.
        others = {name: entry.value for name, entry in registered_recipes().items() if name not in RECIPES}
        if self.json:
            output.emit_json({"recipes": rows, "others": others})
            return 0
        cells = [
            (
                str(row["name"]),
                f"{row['summary']}\n{_sentence('For', row['scenes'])}".rstrip(),
                f"{_size(row['cpu_bytes'])} on a CPU\n{_size(row['cuda_bytes'])} on a GPU",
                f"{row['time']}\n{row['figure']}".strip(),
            )
            for row in rows
        ]
        console, made = output.results(), output.table("", ("recipe", "what it is", "memory", "time, measured"), cells)
        made.show_lines = True
        made.columns[0].no_wrap = made.columns[2].no_wrap = True
        console.print(made)
        for name, value in others.items():
            console.print(f"{name}: {value}, registered by another package.", markup=False, soft_wrap=True)
        console.print(
            f"Memory of one step without images, for {_VIEWS} views of {_SIZE}x{_SIZE}. `raymine train SCENE` chooses "
            f"a recipe and says why; --recipe NAME takes another. A page for each: {_DOCS}.",
            markup=False,
            soft_wrap=True,
        )
        return 0


def _row(name: str, recipe: Recipe) -> dict[str, object]:
    from raymine.recipes import about

    known = about(recipe)
    return {
        "name": name,
        "summary": known.summary,
        "scenes": known.scenes,
        "cpu_bytes": _bytes(recipe, "cpu"),
        "cuda_bytes": _bytes(recipe, "cuda"),
        "time": known.time,
        "figure": known.figure,
        "page": f"{_DOCS}/{known.page}.md" if known.page else "",
    }


def _bytes(recipe: Recipe, device: str) -> int | None:
    """Bytes that training takes on a typical scene that the recipe accepts; None if it accepts neither of them."""
    from raymine.engines.fused.problem import model_problem
    from raymine.errors import ConfigError
    from raymine.experiment.memory import estimate_bytes

    for scene in (_typical(unbounded=False), _typical(unbounded=True)):
        try:
            config = recipe(scene, device)
        except ConfigError:
            continue
        fused = device == "cuda" and not model_problem(config, training=True)
        return estimate_bytes(config, scene.reaching(config.levels).bounds, device, fused)
    return None


def _typical(*, unbounded: bool) -> Scene:
    """A scene without pixels: cameras in a ring that look at its middle."""
    from pathlib import Path

    import numpy as np

    from raymine.cameras import look_at
    from raymine.contracts import Bounds, Camera, Frame, Scene

    camera = Camera(_SIZE, _SIZE, 1.4 * _SIZE, 1.4 * _SIZE, _SIZE / 2, _SIZE / 2)
    distance = 1.0 if unbounded else 4.0
    angles = 2 * np.pi * np.arange(_VIEWS) / _VIEWS
    poses = [look_at((distance * np.cos(a), distance * np.sin(a), 0.3 * distance), (0.0, 0.0, 0.0)) for a in angles]
    bounds = Bounds((-1.0,) * 3, (1.0,) * 3, levels=5) if unbounded else Bounds()
    frames = tuple(Frame(Path(f"{i}.png"), 0, pose) for i, pose in enumerate(poses))
    background = None if unbounded else (1.0, 1.0, 1.0)
    return Scene(
        Path("typical"), "colmap" if unbounded else "blender", (camera,), frames, bounds, background, np.eye(4)
    )


def _sentence(word: str, text: object) -> str:
    return f"{word} {text}." if text else ""


def _size(count: object) -> str:
    return output.size(count) if isinstance(count, int) else "-"
