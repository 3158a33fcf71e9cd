"""Training views of a run with what is still hard about them, for the page about mining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raymine.errors import RaymineError
from raymine.experiment import LoadedRun
from raymine.pages.html import jpeg
from raymine.quantities import spread
from raymine.scenes.bank import open_bank
from raymine.scenes.names import training_names

SHOWN = 3
LONGEST = 240
"""Pixels of the longer side. Each takes a gradient: on two cores of a CPU three views take a few seconds."""


@dataclass(frozen=True)
class HardPicture:
    """The hardness of a training view over its photo, as JPEG. hardest_tenth: see `step.hardness.HardView`."""

    name: str
    hardest_tenth: float
    picture: bytes


@dataclass(frozen=True)
class HardPictures:
    """The pictures of a run. note: why there are none; else empty."""

    pictures: tuple[HardPicture, ...]
    note: str = ""


def hard_pictures_of(load: Callable[[], LoadedRun], *, names: Sequence[str] = (), render: bool = True) -> HardPictures:
    """A few training views: those in `names`, if the run was trained on them, else some that are evenly spread.

    load: opens the run. render: whether to compute anything.
    """
    if not render:
        return HardPictures((), "Pictures of hard samples were not asked for.")
    try:
        return HardPictures(_computed(load(), names))
    except RaymineError as error:
        return HardPictures((), f"Hard samples could not be computed: {error.message}")


def _computed(loaded: LoadedRun, names: Sequence[str]) -> tuple[HardPicture, ...]:
    scene, trained = loaded.scene, loaded.trained
    named = training_names(scene)
    some = tuple(trained[i] for i in spread(len(trained), SHOWN))
    frames = tuple(frame for frame in trained if named[frame] in names) or some
    made = []
    with open_bank(scene, frames) as images:
        for index, frame in enumerate(frames):
            found = loaded.hard_view(images, frames, index, LONGEST)
            assert found is not None, "nothing makes it unwanted"
            made.append(HardPicture(named[frame], found.hardest_tenth, jpeg(found.picture(), LONGEST)))
    return tuple(made)
