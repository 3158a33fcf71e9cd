"""A run in phases, each with an engine of its own: small images, levels that fade in, poses that are refined, the rest.

The phase is a function of (step, horizon), and of whether the refinement of poses has ended, which the state remembers:
so a resumed run continues in the right one, and a horizon that grows never leads back to refined poses. All engines
train one state: the graph engines notice that another one has changed it (`GraphTrainer.reload`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from raymine.contracts import Renderer, StepReport
from raymine.engines.engine import Engine
from raymine.pixels import PixelSampler
from raymine.scenes.bank.reduced import ReducedImages
from raymine.step import TrainConfig, TrainData, TrainState
from raymine.step.data import DepthSource
from raymine.step.schedule import end_of

Kind: TypeAlias = tuple[int, bool, bool]


@dataclass(frozen=True)
class Phase:
    """Part of a run. until: the share of the horizon at which it ends. factor: divisor of the image size.

    fading: whether levels of the field are faded in by `TrainConfig.fade`. refining: whether poses are refined, which
    has a schedule of its own for the levels.
    """

    until: float
    factor: int = 1
    fading: bool = False
    refining: bool = False

    @property
    def kind(self) -> Kind:
        """What an engine is chosen by: phases of one kind share an engine."""
        return self.factor, self.fading, self.refining

    def config(self, config: TrainConfig) -> TrainConfig:
        """The config of a run as it is in this phase: without refinement of poses when that has ended."""
        return config if self.refining else replace(config, poses=None)


def phases_of(config: TrainConfig) -> list[Phase]:
    """The phases of a run; one for a run that does not change."""
    poses, progressive = config.poses, config.progressive
    fade = config.fade if poses is None else None
    ends = {1.0}
    if poses is not None:
        ends.add(poses.end)
    if fade is not None:
        ends.add(fade.fade)
    if progressive is not None:
        ends.update(progressive.until)
    found, start = [], 0.0
    for end in sorted(ends):
        factor = 1 if progressive is None else progressive.factor(start)
        fading, refining = fade is not None and start < fade.fade, poses is not None and start < poses.end
        found.append(Phase(end, factor, fading, refining))
        start = end
    return found


Build = Callable[[TrainState, TrainData, Phase], Engine]
"""(state, data, phase) -> the engine for one phase."""


class PhasedEngine:
    """Advances a state by the engine of its present phase (`engines.Engine`)."""

    def __init__(self, state: TrainState, data: TrainData, phases: Sequence[Phase], build: Build) -> None:
        self._state, self._phases = state, tuple(phases)
        datas = {1: (data, state.pixels)}
        for factor in {phase.factor for phase in phases} - {1}:
            reduced = reduced_data(data, factor)
            datas[factor] = reduced, PixelSampler(state.config.pixels, reduced.images)
        self._pixels = {factor: pixels for factor, (_, pixels) in datas.items()}
        self._engines: dict[Kind, Engine] = {}
        for phase in phases:
            if phase.kind not in self._engines:
                state.pixels = self._pixels[phase.factor]
                self._engines[phase.kind] = build(state, datas[phase.factor][0], phase)
        state.pixels = self._pixels[1]
        names = list(dict.fromkeys(engine.name for engine in self._engines.values()))
        self.name = ", then ".join(names)
        self.reason = next((engine.reason for engine in self._engines.values() if engine.name != "fused"), "")

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Those of all phases."""
        return tuple(self._engines.values())

    @property
    def waited(self) -> float:
        """See `Engine`."""
        return sum(engine.waited for engine in self._engines.values())

    @property
    def phase(self) -> Phase:
        """The phase of the next step."""
        # When refinement has ended, phases with it are over, also those that a grown horizon has moved ahead.
        phases = [each for each in self._phases if each.refining == self._state.refining]
        return next((each for each in phases if self._left(each) > 0), phases[-1])

    def _left(self, phase: Phase) -> int:
        """Steps until the end of a phase."""
        return end_of(phase.until, self._state.horizon) - self._state.step

    def advance(self, steps: int) -> list[StepReport]:
        """Train up to `steps` steps, but not past the end of the phase."""
        self._state.end_refinement()
        phase = self.phase
        if phase is not self._phases[-1]:
            steps = min(steps, self._left(phase))
        self._state.pixels = self._pixels[phase.factor]
        return self._engines[phase.kind].advance(steps)

    def renderer(self) -> Renderer:
        """See `Engine`."""
        return self._engines[self.phase.kind].renderer()

    def warm_up(self) -> None:
        """See `Engine`."""
        for (factor, *_), engine in self._engines.items():
            self._state.pixels = self._pixels[factor]
            engine.warm_up()
        self._state.pixels = self._pixels[1]


@dataclass(frozen=True)
class _ReducedDepths:
    """Depths at the middle of each block of `factor` x `factor` pixels (`step.data.DepthSource`)."""

    depths: DepthSource
    factor: int

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> Tensor:
        half = self.factor // 2
        return self.depths.gather(image, y * self.factor + half, x * self.factor + half)


def reduced_data(data: TrainData, factor: int) -> TrainData:
    """The same images and cameras at 1/factor of the size. Reads every image."""
    depths = None if data.depths is None else _ReducedDepths(data.depths, factor)
    return replace(data, rig=data.rig.reduced(factor), images=ReducedImages(data.images, factor), depths=depths)
