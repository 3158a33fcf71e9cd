"""Names of training images: how a report names them, and how a user names those to leave out.

A name is the stem of the file (`r_3`), its name (`r_3.png`) or its path in the scene folder (`train/r_3.png`). Names
are looked up among the training images alone: test images often have the same stems.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from raymine.contracts import Scene
from raymine.errors import ConfigError, did_you_mean, option


def training_names(scene: Scene) -> dict[int, str]:
    """Frame -> the shortest name that no other training image has, for every frame of the training split."""
    frames = scene.of_split("train")
    spellings = {frame: _spellings(scene, frame) for frame in frames}
    counts = Counter(name for names in spellings.values() for name in set(names))
    return {frame: next((n for n in names if counts[n] == 1), names[-1]) for frame, names in spellings.items()}


def frames_named(scene: Scene, names: Sequence[str]) -> tuple[int, ...]:
    """The training frames with these names, in file order. `ConfigError` for a name that fits none, or several."""
    spellings = {frame: _spellings(scene, frame) for frame in scene.of_split("train")}
    found = set()
    for name in names:
        wanted = name.removeprefix("./")
        fitting = [frame for frame, own in spellings.items() if wanted in own]
        if not fitting:
            raise _unknown(scene, name, {spelling for own in spellings.values() for spelling in own})
        if len(fitting) > 1:
            paths = ", ".join(spellings[frame][-1] for frame in fitting[:3])
            more = ", ..." if len(fitting) > 3 else ""
            raise ConfigError(
                f"{option('leave_out')}: {name!r} fits {len(fitting)} training images: {paths}{more}.",
                hint="Give the path of the image in the scene folder.",
            )
        found.add(fitting[0])
    return tuple(frame for frame in spellings if frame in found)


def _spellings(scene: Scene, frame: int) -> tuple[str, str, str]:
    """Stem, file name and path of a frame's image, from short to long."""
    image = scene.frames[frame].image
    return image.stem, image.name, Path(os.path.relpath(image, scene.root)).as_posix()


def _unknown(scene: Scene, name: str, known: set[str]) -> ConfigError:
    others = [i for i, frame in enumerate(scene.frames) if frame.split != "train" and name in _spellings(scene, i)]
    if others:
        split = scene.frames[others[0]].split
        return ConfigError(
            f"{option('leave_out')}: {name!r} is an image of the {split} split, which is not trained on.",
            hint="Name training images only.",
        )
    return ConfigError(
        f"{option('leave_out')}: the scene {scene.root} has no training image named {name!r}."
        f"{did_you_mean(name, sorted(known))}",
        hint="Give the name of an image file, with or without its suffix, or its path in the scene folder.",
    )
