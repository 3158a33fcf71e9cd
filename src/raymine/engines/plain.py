"""The plain engine: any model on any device, one step at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raymine.contracts import Renderer, StepReport, targets_of
from raymine.kernels.dispatch import triton_problem
from raymine.step import TrainConfig, TrainData, TrainState, train_step, twin_of
from raymine.step.batch import DrawBatch

if TYPE_CHECKING:
    from raymine.engines.fused.rays import DeviceRays


class PlainEngine:
    """Trains a state with `step.train_step`. On CUDA its ops are Triton kernels, and it draws rays on the device."""

    name = "plain"

    def __init__(self, state: TrainState, data: TrainData, reason: str, *, refining: bool = False) -> None:
        """refining: whether poses are refined while this engine trains; it is not used before or after that."""
        self._state, self._data, self.reason, self._refining = state, data, reason, refining
        config = state.config if refining else replace(state.config, poses=None)
        self._rays = _rays_on_device(config, state, data)
        self._draw: DrawBatch | None = None if self._rays is None else self._rays.batch

    @property
    def waited(self) -> float:
        return 0.0 if self._rays is None else self._rays.waited

    def advance(self, steps: int) -> list[StepReport]:
        return [train_step(self._state, self._data, self._draw)]

    def renderer(self) -> Renderer:
        from raymine.engines.choice import renderer_for

        return renderer_for(self._state)

    def warm_up(self) -> None:
        """See `Engine`. It trains another state: parts of a user's own may hold more than what is saved of them."""
        twin = twin_of(self._state, self._data)
        if twin.poses is not None and not self._refining:
            # Another path of the step has kernels of its own.
            twin.poses.end(twin.step)
        for _ in range(2):
            train_step(twin, self._data, self._draw)


def draws_on_device(config: TrainConfig, device: str) -> bool:
    """Whether rays are drawn on the device, which then holds the images. device: "cuda" or another type.

    config: that of a run, or of one of its phases (`phased.Phase.config`).
    """
    if device != "cuda" or triton_problem() or config.pixels.follows_error or targets_of(config.loss):
        # Rays that are drawn on the device have no alpha or depth beside them.
        return False
    if config.exposure is not None:
        return False
    # Rays of refined poses must say which image they belong to, and where images are bands they do not. A run that
    # refines poses to its end may have more images than the device has room for, and needs none there.
    return config.poses is None or (config.image_memory is None and config.poses.end < 1)


def _rays_on_device(config: TrainConfig, state: TrainState, data: TrainData) -> DeviceRays | None:
    """What draws the rays of a plain step on CUDA; None if the host draws them."""
    if not draws_on_device(config, state.device.type):
        return None
    from raymine.engines.fused.rays import DeviceRays

    return DeviceRays(state, data)
