"""Checks of depth maps: reads every one as training with a depth loss does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from raymine.files import UnreadableFile
from raymine.machine import cores
from raymine.scenes.depth import read_depth
from raymine.scenes.fit import Fitted
from raymine.scenes.load import Assembly
from raymine.scenes.problems import Problem

_MOST_THREADS = 8
_SAME_ASPECT = 0.02


def check_depths(assembly: Assembly) -> list[Problem]:
    """Finds depth maps that cannot be read, that know no depth, and those of another shape than their image.

    They are warnings: training without a depth loss does not read them.
    """
    with_depth = [item for item in assembly.fitted if item.frame.depth is not None]
    with ThreadPoolExecutor(min(_MOST_THREADS, cores())) as pool:
        return [found for found in pool.map(_examine, with_depth) if found is not None]


def _examine(item: Fitted) -> Problem | None:
    frame, camera = item.frame, item.camera
    assert frame.depth is not None
    try:
        depth = read_depth(frame.depth)
    except UnreadableFile as error:
        return _problem(item, f"the depth map {frame.depth.name} {error.what}")
    if not (np.isfinite(depth) & (depth > 0)).any():
        return _problem(item, f"the depth map {frame.depth.name} has no positive depth anywhere.")
    height, width = depth.shape
    if abs(np.log(width / height * camera.height / camera.width)) > _SAME_ASPECT + 2 / min(height, camera.height):
        size = f"{camera.width}x{camera.height}"
        return _problem(
            item, f"the depth map {frame.depth.name} is {width}x{height}, another shape than the image ({size})."
        )
    return None


def _problem(item: Fitted, what: str) -> Problem:
    return Problem(item.frame.name, what, "Write it again, or remove `depth_file_path`.", "warning", "depth")
