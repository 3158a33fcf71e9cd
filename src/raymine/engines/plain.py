"""The plain engine: any model on any device, one step at a time."""

from __future__ import annotations

import torch

from raymine.contracts import Renderer, StepReport, targets_of
from raymine.kernels.dispatch import triton_problem
from raymine.step import TrainData, TrainState, train_step, twin_of
from raymine.step.batch import DrawBatch

_IMAGE_SHARE = 0.25
"""Largest fraction of device memory for images. If they need more, a plain step draws pixels on the host."""


class PlainEngine:
    """Trains a state with `step.train_step`. On CUDA its ops are Triton kernels, and it draws rays on the device."""

    name = "plain"

    def __init__(self, state: TrainState, data: TrainData, reason: str) -> None:
        self._state, self._data, self.reason = state, data, reason
        self._draw = _draw_on_device(state, data)

    def advance(self, steps: int) -> list[StepReport]:
        return [train_step(self._state, self._data, self._draw)]

    def renderer(self) -> Renderer:
        from raymine.engines.choice import renderer_for

        return renderer_for(self._state)

    def warm_up(self) -> None:
        """See `Engine`. It trains another state: parts of a user's own may hold more than what is saved of them."""
        twin = twin_of(self._state, self._data)
        for _ in range(2):
            train_step(twin, self._data, self._draw)


def _draw_on_device(state: TrainState, data: TrainData) -> DrawBatch | None:
    """A function that draws the rays of a plain step on CUDA. None if it is unsupported or takes too much memory."""
    device = state.device
    if device.type != "cuda" or triton_problem() or state.pixels.learns:
        return None
    # Rays that are drawn on the device have no graph to the poses, do not say which image they belong to, and have no
    # alpha or depth beside them.
    if state.poses is not None or state.exposure is not None or targets_of(state.config.loss):
        return None
    if not images_fit(state, data):
        return None
    from raymine.engines.fused.rays import DeviceRays

    return DeviceRays(state, data).batch


def images_fit(state: TrainState, data: TrainData) -> bool:
    """Whether the device of the state has room for the images, so that rays can be drawn there."""
    wanted = 5 * int(data.images.sizes.prod(1).sum())  # colours and masks
    return wanted <= _IMAGE_SHARE * torch.cuda.get_device_properties(state.device).total_memory
