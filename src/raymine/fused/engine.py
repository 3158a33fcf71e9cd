"""How a state is advanced and shown: by the fused kernels where they can, by the plain step elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from raymine.contracts import Renderer, StepReport
from raymine.fused.problem import NoRoomError, problem_with
from raymine.kernels.dispatch import triton_problem
from raymine.step import TrainData, TrainState, train_step
from raymine.step.train import Draw

if TYPE_CHECKING:
    from raymine.fused.renderer import FusedRenderer

_IMAGE_SHARE = 0.25
"""Of the device's memory that images may take for a plain step to draw from them there."""


class Engine(Protocol):
    """`name` and `reason` are for people: what runs, and why."""

    name: str
    reason: str
    image_bytes: int | None
    """Of the images that a fused engine holds on the device; None for another."""

    def advance(self, steps: int) -> list[StepReport]:
        """Train at least one and at most `steps` steps; a report of each."""
        ...

    def renderer(self) -> Renderer:
        """A renderer of what has been learnt by the time it is called."""
        ...

    def stage_times(self) -> dict[str, float]:
        """Milliseconds by stage, where stages can be told apart. The state is of no use afterwards."""
        ...

    def busy_share(self) -> float | None:
        """Share of the wall clock of training that the device works; None where that is not known."""
        ...


class PlainEngine:
    """One step at a time, stage by stage, on whatever device."""

    name = "plain"
    image_bytes: int | None = None

    def __init__(self, state: TrainState, data: TrainData, reason: str) -> None:
        self._state, self._data, self.reason = state, data, reason
        self._draw = _draw_on_device(state, data)

    def advance(self, steps: int) -> list[StepReport]:
        return [train_step(self._state, self._data, self._draw)]

    def renderer(self) -> Renderer:
        return renderer_for(self._state)

    def stage_times(self) -> dict[str, float]:
        return {}

    def busy_share(self) -> float | None:
        return None


class FusedEngine:
    """Many steps at a time on CUDA."""

    name, reason = "fused", "Triton kernels in a CUDA graph"

    def __init__(self, state: TrainState, data: TrainData) -> None:
        from raymine.fused.trainer import FusedTrainer

        self._trainer = FusedTrainer(state, data)
        self.image_bytes: int | None = self._trainer.rays.images.bytes
        self._renderer: FusedRenderer | None = None

    def advance(self, steps: int) -> list[StepReport]:
        return self._trainer.advance(steps)

    def renderer(self) -> Renderer:
        state = self._trainer.state
        if self._renderer is None:
            self._renderer = _fused_renderer(state)
        else:
            self._renderer.refresh()
        return self._renderer

    def stage_times(self) -> dict[str, float]:
        from raymine.fused.timing import stage_times

        return stage_times(self._trainer)

    def busy_share(self) -> float | None:
        from raymine.fused.timing import busy_share

        return busy_share(self._trainer)

    def compile(self) -> None:
        """Make every kernel of training ready. The state is of no use afterwards."""
        from raymine.kernels._triton import compiling

        trainer, sampler = self._trainer, self._trainer.state.sampler
        with compiling():
            trainer.run_stages()
            sampler.swept = True  # else everything is occupied, and nobody asks what is
            for everything in (True, False):
                trainer.grid.update(trainer.model, everything)
        sampler.swept = False
        trainer.reload()
        trainer.advance(2)
        sampler.swept = True
        for everything in (True, False):
            trainer.grid.update(trainer.model, everything)
        trainer.advance(1)


def engine_for(state: TrainState, data: TrainData) -> Engine:
    """The quickest engine that can take the state."""
    problem = problem_with(state.config, state.device.type, training=True)
    if problem:
        return PlainEngine(state, data, problem)
    try:
        return FusedEngine(state, data)
    except NoRoomError as error:
        return PlainEngine(state, data, str(error))


def _draw_on_device(state: TrainState, data: TrainData) -> Draw | None:
    """How a plain step on CUDA draws without the host; None where it cannot, or where images would take too much."""
    device = state.device
    if device.type != "cuda" or triton_problem() or state.pixels.learns or data.rig.dynamic:
        return None
    wanted = 5 * int(data.images.sizes.prod(1).sum())  # colours and masks
    if wanted > _IMAGE_SHARE * torch.cuda.get_device_properties(device).total_memory:
        return None
    from raymine.fused.rays import DeviceRays

    return DeviceRays(state, data).batch


def renderer_for(state: TrainState) -> Renderer:
    """The quickest renderer that can take the state."""
    return state.renderer() if problem_with(state.config, state.device.type, training=False) else _fused_renderer(state)


def _fused_renderer(state: TrainState) -> FusedRenderer:
    from raymine.fused.renderer import FusedRenderer

    shown = state.field if state.average is None else state.average.field
    return FusedRenderer(shown, state.sampler, stop=state.config.mining.stop)


def compile_kernels(state: TrainState, data: TrainData) -> None:
    """Compile or load every kernel that training such a state needs, at the cost of the state."""
    engine = engine_for(state, data)
    if isinstance(engine, FusedEngine):
        engine.compile()
        return
    for _ in range(2):
        engine.advance(1)
