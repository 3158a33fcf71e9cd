"""The fused engine: many steps at a time on CUDA, without synchronising with the host."""

from __future__ import annotations

from raymine.contracts import Renderer, StepReport
from raymine.engines.fused.model import hash_field, occupancy_of
from raymine.engines.fused.renderer import FusedRenderer
from raymine.engines.fused.trainer import FusedTrainer
from raymine.kernels._triton import compiling
from raymine.step import TrainData, TrainState


class FusedEngine:
    """Trains a state by replaying a CUDA graph (see `trainer`)."""

    name, reason = "fused", "Triton kernels in a CUDA graph"

    def __init__(self, state: TrainState, data: TrainData) -> None:
        self.trainer = FusedTrainer(state, data)
        self._renderer: FusedRenderer | None = None

    @property
    def waited(self) -> float:
        return self.trainer.rays.waited

    @property
    def image_bytes(self) -> int:
        """Size of the images on the device, in bytes."""
        return self.trainer.rays.images.bytes

    def advance(self, steps: int) -> list[StepReport]:
        return self.trainer.advance(steps)

    def renderer(self) -> Renderer:
        if self._renderer is None:
            self._renderer = fused_renderer(self.trainer.state)
        else:
            self._renderer.refresh()
        return self._renderer

    def compile_kernels(self) -> None:
        """Compile every kernel of a step in parallel, or load it from the cache on disk, without launching it.

        The state must be discarded, or restored as `warm_up` does.
        """
        trainer, sampler = self.trainer, self.trainer.sampler
        trainer.ranks.silent = True
        try:
            with compiling():
                trainer.run_stages()
                sampler.swept = True  # before the first sweep every cell counts as occupied, and `mark` does not run
                for everything in (True, False):
                    trainer.grid.update(trainer.model, everything)
        finally:
            trainer.ranks.silent = False
        sampler.swept = False

    def warm_up(self) -> None:
        """See `Engine`. Kernels are first compiled in parallel; then a few steps load them and capture the graph."""
        trainer, sampler = self.trainer, self.trainer.sampler
        with trainer.rehearsal():
            self.compile_kernels()
            trainer.state.ranks.meet()
            trainer.reload()
            trainer.advance(2)
            sampler.swept = True
            for everything in (True, False):
                trainer.grid.update(trainer.model, everything)
            trainer.advance(1)


def fused_renderer(state: TrainState) -> FusedRenderer:
    """A renderer of `state.shown`, the field to evaluate (the averaged one if there is an average)."""
    return FusedRenderer(hash_field(state.shown), occupancy_of(state), stop=state.config.mining.stop)
