"""The fast path on CUDA: the training step and the renderer of the hash-grid recipe as a few fused Triton kernels."""

from __future__ import annotations

from raymine.fused.engine import Engine as Engine
from raymine.fused.engine import compile_kernels as compile_kernels
from raymine.fused.engine import engine_for as engine_for
from raymine.fused.engine import renderer_for as renderer_for
from raymine.fused.problem import problem_with as problem_with
