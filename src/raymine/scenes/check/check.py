"""Every problem of a scene in one pass, each with its file and its fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raymine.scenes.load import assemble, resolve_path
from raymine.scenes.problems import Problem

from .frames import check_duplicates, check_views
from .pixels import check_pixels


def check_scene(
    path: str | Path, downscale: int = 1, *, progress: Callable[[int, int], None] | None = None
) -> list[Problem]:
    """All problems of a scene, errors before warnings; an empty list means that it can be trained on as it is.

    Every image and mask is read and decoded in full, by several threads; `progress(done, total)` is called after each,
    always from the calling thread. Raises only for an impossible `downscale`.
    """
    assembly = assemble(resolve_path(path), downscale)
    problems = list(assembly.problems)
    problems += check_pixels(assembly.parsed, progress)
    problems += check_duplicates(assembly.parsed)
    if assembly.scene is not None:
        problems += check_views(assembly)
    return sorted(problems, key=lambda p: p.severity != "error")
