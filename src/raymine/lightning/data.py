"""The images of a scene as a LightningDataModule, and the step numbers that are its batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningDataModule

from raymine.contracts import Scene
from raymine.errors import ConfigError, option
from raymine.experiment import evaluation_frames
from raymine.experiment.prepare import split_training

_LOOKS = 4
"""Epochs of a fit with `max_steps`, and so validations, where `epoch_steps` is None."""
_EPOCH = 1000
"""Steps of an epoch in a fit without `max_steps`."""


class RaymineData(LightningDataModule):
    """The images of a scene. Training images are those that `raymine.train` trains on with the same options.

    scene: a scene folder, or "builtin". downscale: divide the size of the images by this.
    hold_out: training views, evenly spread, that are validated on and not trained on. Without any, test views are.
    leave_out: names of training images that are not trained on.
    views: test views of a validation; 0 turns validation off.
    epoch_steps: steps of an epoch. Lightning validates after each. None: a quarter of the `max_steps` of the Trainer.
    """

    def __init__(
        self,
        scene: str | Path,
        *,
        downscale: int = 1,
        hold_out: int = 0,
        leave_out: Sequence[str] = (),
        views: int = 8,
        epoch_steps: int | None = None,
    ) -> None:
        super().__init__()
        if epoch_steps is not None and epoch_steps < 1:
            raise ConfigError(f"{option('epoch_steps')} must be at least 1, got {epoch_steps}.")
        self.scene, self.downscale, self.hold_out, self.leave_out = scene, downscale, hold_out, tuple(leave_out)
        self.views, self.epoch_steps = views, epoch_steps

    def validation_frames(self, scene: Scene) -> tuple[int, ...]:
        """The frames of a validation: those that are held out, else test views; none if `views` is 0."""
        if not self.views:
            return ()
        return split_training(scene, self.hold_out, self.leave_out)[1] or evaluation_frames(scene, self.views)

    def steps_per_epoch(self) -> int:
        """Steps of an epoch in the present fit."""
        planned = -1 if self.trainer is None else self.trainer.max_steps
        return self.epoch_steps or (max(1, planned // _LOOKS) if planned > 0 else _EPOCH)

    def train_dataloader(self) -> Any:
        return _StepNumbers(self.steps_per_epoch())

    def val_dataloader(self) -> Any:
        """One batch, in which all views are evaluated. Lightning warns about a loader without batches."""
        return _StepNumbers(1)

    test_dataloader = val_dataloader


class _StepNumbers:
    """The numbers 0 .. count - 1. Lightning saves and restores the position through `state_dict`."""

    def __init__(self, count: int) -> None:
        self._count, self._position, self._begin = count, 0, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        begin, self._begin = self._begin, 0
        for number in range(begin, self._count):
            self._position = number + 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._begin = state["position"] % max(1, self._count)
