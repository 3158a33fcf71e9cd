"""Finds every problem of a scene in one pass, each with its file and a fix, and says how training would use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raymine.contracts import Scene
from raymine.scenes.load import assemble, resolve_path
from raymine.scenes.problems import Problem

from .depths import check_depths
from .frames import check_duplicates, check_views
from .pixels import check_pixels


@dataclass(frozen=True)
class SceneReport:
    """Result of `examine_scene`. problems: errors before warnings; a scene with errors is not trained.

    format: a key of `readers.detect.FORMAT_NAMES`. scene: made of the usable frames, None if there are none. unused:
    phrases for what the folder holds and raymine does not use.
    """

    problems: list[Problem]
    format: str
    scene: Scene | None
    unused: tuple[str, ...]


def examine_scene(
    path: str | Path, downscale: int = 1, *, progress: Callable[[int, int], None] | None = None
) -> SceneReport:
    """All problems of a scene, and the scene as `load_scene` reads it.

    Several threads read and fully decode every image and mask, as training does. progress: called with (images done,
    images in total) after each image, from the calling thread. Raises ConfigError only for an invalid `downscale`.
    """
    assembly = assemble(resolve_path(path), downscale)
    problems = list(assembly.problems)
    problems += check_pixels(assembly, progress)
    problems += check_depths(assembly)
    problems += check_duplicates(assembly.parsed)
    if assembly.scene is not None:
        problems += check_views(assembly)
    ordered = sorted(problems, key=lambda p: p.severity != "error")
    return SceneReport(ordered, assembly.parsed.format, assembly.scene, assembly.unused)


def check_scene(
    path: str | Path, downscale: int = 1, *, progress: Callable[[int, int], None] | None = None
) -> list[Problem]:
    """The problems that `examine_scene` finds, errors before warnings. Training can start if none is an error."""
    return examine_scene(path, downscale, progress=progress).problems
