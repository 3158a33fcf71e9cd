"""The choice of an engine for a model, with a reason to show to the user."""

from __future__ import annotations

from raymine.contracts import Renderer
from raymine.engines.engine import Engine
from raymine.engines.fused.problem import NoRoomError, problem_with
from raymine.engines.phased import Phase, PhasedEngine, phases_of
from raymine.engines.plain import PlainEngine, draws_on_device
from raymine.errors import option
from raymine.kernels.dispatch import triton_problem
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig, TrainData, TrainState
from raymine.step.objective import closed_form


def engine_for(state: TrainState, data: TrainData) -> Engine:
    """The fastest engine that can train the state. A run in phases has one for each of them."""
    phases = phases_of(state.config)
    if len(phases) > 1:
        return PhasedEngine(state, data, phases, _engine_for)
    return _engine_for(state, data, phases[0])


def _engine_for(state: TrainState, data: TrainData, phase: Phase) -> Engine:
    """The fastest engine that can train the state in a phase of its run."""
    config = phase.config(state.config)
    problem = problem_with(config, state.device.type, training=True)
    if state.ranks.active and not problem:
        problem = ranks_problem(config, state.ranks.backend)
    if not problem and phase.fading:
        problem = "levels of the field fade in, and the fused kernels know no weights of levels"
    if not problem:
        from raymine.engines.fused.engine import FusedEngine

        try:
            return FusedEngine(state, data)
        except NoRoomError as error:
            problem = str(error)
    if not state.ranks.active and not capture_problem(state, config):
        from raymine.engines.captured import CapturedEngine, worth_capturing

        if worth_capturing(config) or config.engine == "captured":
            return CapturedEngine(state, data, problem, refining=phase.refining)
    return PlainEngine(state, data, problem, refining=phase.refining)


def ranks_problem(config: TrainConfig, backend: str) -> str:
    """Why several processes cannot train a model with the fused step, or an empty string. backend: `nccl` or `gloo`."""
    if backend != "nccl" and config.engine != "fused":
        # The fused step sums whole tables, which gloo takes through the host; the plain one sends touched rows.
        return f"several processes share a GPU; {option('engine', 'fused')} has them take the fused step all the same"
    if config.mining.policy == "hard" and config.mining.hard.draw != "poisson":
        return f"several processes train the run, and the draw {config.mining.hard.draw} needs the samples of all"
    return ""


def capture_problem(state: TrainState, config: TrainConfig) -> str:
    """Why a step of plain torch cannot be captured in a CUDA graph, or an empty string.

    config: that of the state, as it is in a phase of the run (`Phase.config`).
    """
    problem = triton_problem() if state.device.type == "cuda" else f"CUDA graphs do not run on {state.device.type}"
    if problem:
        return problem
    if config.engine == "plain":
        return "the plain step was asked for"
    if config.exposure is not None:
        return "exposures are fitted, and `judge` does not know them"
    if config.poses is not None and not draws_on_device(config, state.device.type):
        return "poses are refined, and the host draws their rays"
    if type(config.sampler) is not OccupancyConfig:
        return f"shapes are fixed for the occupancy grid alone, not for {type(config.sampler).__name__}"
    if closed_form(state) is None:
        return "the loss or the activations are others than those of `judge`"
    if config.pixels.follows_error:
        return "pixels are drawn by their errors, on the host"
    if config.recompute_samples or config.deterministic:
        return "activations are recomputed, or bits are to repeat"
    return ""


def renderer_for(state: TrainState) -> Renderer:
    """The fastest renderer that supports the state."""
    # The fused kernels know no weights of levels.
    if state.fading or problem_with(state.config, state.device.type, training=False):
        return state.renderer()
    from raymine.engines.fused.engine import fused_renderer

    return fused_renderer(state)
