"""Finds every problem of a scene in one pass, each with its file and a fix."""

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
    """All problems of a scene, errors before warnings. An empty list means that training can start.

    Several threads read and fully decode every image and mask. progress: called with (files done, files in total) after
    each file, from the calling thread. Raises ConfigError only for an invalid `downscale`.
    """
    assembly = assemble(resolve_path(path), downscale)
    problems = list(assembly.problems)
    problems += check_pixels(assembly, progress)
    problems += check_duplicates(assembly.parsed)
    if assembly.scene is not None:
        problems += check_views(assembly)
    return sorted(problems, key=lambda p: p.severity != "error")
