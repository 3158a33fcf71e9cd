"""What a user is told about refined poses and exposures: before a run, at a limit of a correction, and at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from raymine.contracts import Scene
from raymine.errors import ConfigError, option
from raymine.files import JSON
from raymine.quantities import listing
from raymine.step import TrainConfig, TrainState
from raymine.step.poses import scene_scale

_ONE_PLACE = 1e-3
"""Cameras are in one place if their centres lie within this share of the scale of the scene."""
_NAMED = 3
"""Images that a warning names; it counts the others."""


def fitting_warnings(config: TrainConfig, scene: Scene, trained: Sequence[int]) -> tuple[str, ...]:
    """Sentences about what poses or exposures cannot be fitted to. `ConfigError` if there are too few images."""
    for name, wanted, words in (
        ("refine_poses", config.poses, "poses are refined against each other"),
        ("exposure", config.exposure, "exposures are relative to the mean of all images"),
    ):
        if wanted is not None and len(trained) < 2:
            raise ConfigError(
                f"{option(name)} needs at least 2 training images, and this run has {len(trained)}: {words}.",
                hint=f"Train without {option(name)}, or with more images.",
            )
    if config.poses is None:
        return ()
    centres = np.stack([scene.frames[i].pose[:, 3] for i in trained])
    if float(np.ptp(centres, axis=0).max()) > _ONE_PLACE * scene_scale(scene.bounds):
        return ()
    return (
        "All training cameras are in one place, so that nothing shows how far away things are: pose refinement can "
        "correct how the cameras are turned, but not where they are.",
    )


class PoseWatch:
    """The corrections of a run's poses in words. names: of the training images, in order."""

    def __init__(self, state: TrainState, names: Sequence[str]) -> None:
        self._state, self._names = state, tuple(names)
        self._told: set[int] = set()
        self._refining = state.refining

    @property
    def refining(self) -> bool:
        """Whether poses are refined now."""
        return self._state.refining

    def kept_in(
        self, tensors: dict[str, Tensor], scalars: dict[str, JSON]
    ) -> tuple[dict[str, Tensor], dict[str, JSON]]:
        """See `PoseRefinement.kept_in`."""
        poses = self._state.poses
        return (tensors, scalars) if poses is None else poses.kept_in(tensors, scalars)

    def ending(self) -> str:
        """A sentence that refinement has ended since the last call, or ""."""
        ended, self._refining = self._refining and not self._state.refining, self._state.refining
        poses, sizes = self._state.poses, self.mean_sizes()
        if not ended or poses is None or sizes is None:
            return ""
        return f"poses stay as they are from step {poses.ended} on: {in_words(*sizes)}"

    def news(self) -> str:
        """A sentence that names the images whose correction has reached its limit since the last call, or ""."""
        poses = self._state.poses
        new = [] if poses is None else [index for index in poses.at_limit() if index not in self._told]
        if poses is None or not new:
            return ""
        self._told.update(new)
        names = listing([self._names[index] for index in new], _NAMED)
        limits = f"{poses.config.limit_degrees:g} degrees, {poses.config.limit_distance:g} of the scene's scale"
        return (
            f"the pose correction of {names} has reached its limit ({limits}) and goes no further; "
            "if many images do, the given poses are too far off, or poses.lr is too high"
        )

    def mean_sizes(self) -> tuple[float, float] | None:
        """Mean correction: degrees, and share of the scale of the scene. None if poses are not refined."""
        if self._state.poses is None:
            return None
        degrees, distance = self._state.poses.sizes()
        return float(degrees.mean()), float(distance.mean())


def in_words(degrees: float, distance: float) -> str:
    """`poses moved by 0.42 degrees and 0.80 % of the scene on average`."""
    return f"poses moved by {degrees:.2f} degrees and {100 * distance:.2f} % of the scene on average"
