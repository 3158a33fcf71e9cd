"""The images and depth maps that a run recorded when it was made, and which of them have changed since."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raymine.files import read_object
from raymine.run_files import IMAGES
from raymine.scenes.depth import DEPTH_MAP


def recorded_inputs(run: Path) -> dict[str, str]:
    """The digests of the training images of a run by their names, and of the depth maps that it trains with.

    {} for a run that recorded none.
    """
    return read_object(run / IMAGES)


def recorded_images(run: Path) -> tuple[str, ...]:
    """The names of the training images of a run, in their order; () for a run that recorded none."""
    return tuple(name for name in recorded_inputs(run) if not name.endswith(DEPTH_MAP))


def recorded_depths(run: Path) -> dict[str, str]:
    """The digests of the depth maps alone; {} for runs without any, and for runs of earlier versions."""
    return {name: digest for name, digest in recorded_inputs(run).items() if name.endswith(DEPTH_MAP)}


def changed_names(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """The names whose digests differ, in order."""
    return tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))
