"""Mixed precision and recomputed activations for any field, in the plain step."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextvars import copy_context
from functools import cache
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recomputed

from raymine.contracts import (
    Field,
    FieldInput,
    FieldOutput,
    KeepsFeatures,
    PullsBack,
    SeesAlongRays,
    activations_of,
)
from raymine.kernels.activations import Activations
from raymine.step.config import Amp, TrainConfig

FP16_LOSS_SCALE = 1024.0
"""The loss scale for float16. bfloat16 has the range of float32 and needs none.

The loss is a mean over rays, so the gradient of one sample is tiny. With 32,768 rays of the built-in scene the error of
the table's gradient is 37 % without a scale, 0.9 % at 128, 0.45 % here and 0.43 % at 8192. Gradients of layers, which
are sums over samples, overflow above 64 with this scale; they were 8e-4. So a constant scale is enough. A step that
overflows nevertheless changes no parameter and is counted, and the loop rolls back after several in a row. Division by
a power of two is exact.
"""


def product_type(amp: Amp) -> torch.dtype:
    """The dtype of the networks' matrix products in the plain step."""
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(amp, torch.float32)


class StepFields(NamedTuple):
    """The field as a step uses it. inference: in passes without a graph. training: in the pass that is differentiated.

    loss_scale: multiplies the loss of that pass.
    """

    inference: Field
    training: Field
    loss_scale: float


def fields_for_step(config: TrainConfig, field: Field) -> StepFields:
    """The fields with which a step evaluates its samples.

    A field's own kernels (`SeesAlongRays`, `PullsBack`) compute in float32. With another dtype both passes use torch.
    With such kernels the inference pass is not split into pieces, because they store almost nothing per sample; plain
    torch would evaluate all samples at once.
    """
    dtype = product_type(config.amp)
    if dtype is torch.float32 and not config.recompute_samples:
        return StepFields(field, field, 1.0)
    training = TorchField(field, dtype, config.recompute_samples)
    scale = FP16_LOSS_SCALE if dtype is torch.float16 else 1.0
    return StepFields(field if training.kernels else training, training, scale)


def field_for_occupancy(config: TrainConfig, field: Field) -> Field:
    """The field for updates of the occupancy grid: always float32, because an overflow would get into the grid."""
    return TorchField(field, torch.float32, config.recompute_samples) if config.recompute_samples else field


class TorchField:
    """Any field, evaluated by torch in another dtype or in pieces (`contracts.Field`, `KeepsFeatures`, `PullsBack`).

    dtype: of matrix products, by `torch.autocast`; every output is float32.
    piece: the most samples evaluated at once, with activations recomputed in the backward pass. 0: evaluate all samples
        at once and store activations.
    kernels: whether the field has kernels of its own for this dtype; `pull_back` then uses them.
    """

    def __init__(self, field: Field, dtype: torch.dtype, piece: int) -> None:
        self.field, self.dtype, self.piece = field, dtype, piece
        own = isinstance(field, SeesAlongRays) and isinstance(field, PullsBack) and field.along_rays
        self.kernels = dtype is torch.float32 and own

    @property
    def activations(self) -> Activations:
        return activations_of(self.field)

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] -> [n] density before activation."""
        parts = []
        for rows in self._pieces(len(positions)):
            with self._autocast(positions.device):
                raw = self.field.density(positions[rows], None if time is None else time[rows])
            parts.append(raw.float())
        return torch.cat(parts)

    @torch.no_grad()
    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `density`, and the features that the field keeps for `forward`; [n, 0] if it keeps none."""
        if not isinstance(self.field, KeepsFeatures):
            return self.density(positions, time), positions.new_empty(len(positions), 0)
        found = []
        for rows in self._pieces(len(positions)):
            with self._autocast(positions.device):
                raw, kept = self.field.density_and_features(positions[rows], None if time is None else time[rows])
            found.append((raw.float(), kept))
        return torch.cat([raw for raw, _ in found]), torch.cat([kept for _, kept in found])

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points -> pre-activations, float32."""
        if not self.piece:
            return FieldOutput(*self._outputs(query.positions, query.directions, query.time, query.features))
        parts = [self._piece(query, rows) for rows in self._pieces(len(query.positions))]
        return FieldOutput(torch.cat([colour for colour, _ in parts]), torch.cat([density for _, density in parts]))

    def pull_back(self, query: FieldInput, colour: Tensor, density: Tensor) -> None:
        """Add to `.grad` of the parameters, given gradients of the pre-activations: colour [n, 3], density [n].

        These gradients are known in advance, so each piece goes forward and backward before the next one, and nothing
        is recomputed.
        """
        for rows in self._pieces(len(colour)):
            part = _rows(query, rows)
            if self.kernels:
                cast("PullsBack", self.field).pull_back(FieldInput(*part), colour[rows], density[rows])
                continue
            with torch.enable_grad():
                outputs = self._outputs(*part)
            torch.autograd.backward(outputs, (colour[rows], density[rows]))

    def _pieces(self, n: int) -> Iterator[slice]:
        """Consecutive ranges of at most `piece` samples. Without samples, one empty range, so that there is a graph."""
        size = self.piece or max(1, n)
        return (slice(start, min(start + size, n)) for start in range(0, max(1, n), size))

    def _piece(self, query: FieldInput, rows: slice) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled():
            return self._outputs(*_rows(query, rows))
        # On CUDA the recomputation runs on a thread of autograd. Only this context carries a forced backend there.
        # A field draws no random numbers, so no generator state needs to be restored.
        again = copy_context().run, self._outputs
        return recomputed(*again, *_rows(query, rows), use_reentrant=False, preserve_rng_state=False)

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self.dtype, enabled=self.dtype is not torch.float32)

    def _outputs(
        self, positions: Tensor, directions: Tensor, time: Tensor | None, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Colour [n, 3] and density [n]."""
        kept = features if isinstance(self.field, KeepsFeatures) else None
        with self._autocast(positions.device):
            out = self.field.forward(FieldInput(positions, directions, time, kept))
        return out.colour.float(), out.density.float()


def _rows(query: FieldInput, rows: slice) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Positions, directions, times and features of a range of points."""
    time = None if query.time is None else query.time[rows]
    return query.positions[rows], query.directions[rows], time, None if query.features is None else query.features[rows]


def amp_problem(amp: Amp, device: torch.device) -> str:
    """Why `device` cannot train with this `amp`, or an empty string. Call it before training starts."""
    dtype = product_type(amp)
    if dtype is torch.float32:
        return ""
    if device.type == "cuda":
        with torch.cuda.device(device):
            native = dtype is torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if native else "bfloat16 needs a GPU of compute capability 8.0 or newer"
    if not torch.amp.is_autocast_available(device.type):
        return f"torch {torch.__version__} has no autocast on {device.type}"
    return trial_problem(str(dtype).removeprefix("torch."))


TRIAL = """
import torch
for n in (1, 1000):
    weights = [torch.ones(32, 64, requires_grad=True), torch.ones(64, 3, requires_grad=True)]
    with torch.autocast("cpu", torch.{dtype}):
        out = (torch.ones(n, 32) @ weights[0]).relu_() @ weights[1]
    assert out.dtype is torch.{dtype}
    out.float().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in weights)
"""
"""Layers as in a training step, at two sizes, because torch's libraries choose their code by size."""


@cache
def trial_problem(dtype: str) -> str:
    """Why this CPU cannot multiply in `dtype` (a name in torch), or an empty string.

    Libraries choose instructions by the features that the processor reports. On some virtual machines it reports
    features that it lacks, and then a signal kills the process. So the trial runs once, in a process of its own.
    """
    if not sys.executable:
        return ""
    code = TRIAL.format(dtype=dtype)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        why = signal.Signals(-done.returncode).name
    else:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"torch {torch.__version__} cannot multiply in {dtype} on this CPU: a trial ended with {why}"
