"""The choice of an engine for a model, with a reason to show to the user."""

from __future__ import annotations

from raymine.contracts import Renderer
from raymine.engines.engine import Engine
from raymine.engines.fused.problem import NoRoomError, problem_with
from raymine.engines.plain import PlainEngine
from raymine.step import TrainData, TrainState


def engine_for(state: TrainState, data: TrainData) -> Engine:
    """The fastest engine that can train the state."""
    problem = problem_with(state.config, state.device.type, training=True)
    if problem:
        return PlainEngine(state, data, problem)
    from raymine.engines.fused.engine import FusedEngine

    try:
        return FusedEngine(state, data)
    except NoRoomError as error:
        return PlainEngine(state, data, str(error))


def renderer_for(state: TrainState) -> Renderer:
    """The fastest renderer that supports the state."""
    if problem_with(state.config, state.device.type, training=False):
        return state.renderer()
    from raymine.engines.fused.engine import fused_renderer

    return fused_renderer(state)
