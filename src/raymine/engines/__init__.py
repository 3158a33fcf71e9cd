"""Engines train a state and render it. `plain` supports every model; `fused` is the fast path on CUDA."""

from .ahead import compile_ahead as compile_ahead
from .choice import engine_for as engine_for
from .choice import renderer_for as renderer_for
from .engine import Engine as Engine
from .fused.problem import problem_with as problem_with
from .phased import Phase as Phase
from .phased import phases_of as phases_of
from .plain import PlainEngine as PlainEngine
from .plain import draws_on_device as draws_on_device
