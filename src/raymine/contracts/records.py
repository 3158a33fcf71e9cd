"""Records that flow through a training step: rays, samples, what a field says of them, what is rendered and learnt."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from raymine.kernels.packed import Samples as Samples
from raymine.kernels.philox.op import uniform


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step: a function of (seed, step, stream, index), so there is no state to save."""

    seed: int
    step: int
    device: torch.device

    def uniform(self, stream: int, shape: tuple[int, ...], first: int = 0) -> Tensor:
        """float32 of `shape`, uniform in [0, 1). `stream` keeps purposes apart: `philox.Stream`, or from 1000 up.

        first: index of the first draw, where a stream is drawn piece by piece.
        """
        return uniform(self.seed, self.step, stream, shape, self.device, first=first)


@dataclass(frozen=True)
class Rays:
    """origins, directions [R, 3]; near, far [R]; time [R] in 0..1 for dynamic scenes, else None."""

    origins: Tensor
    directions: Tensor
    near: Tensor
    far: Tensor
    time: Tensor | None = None

    def __len__(self) -> int:
        return self.origins.shape[0]

    def slice(self, start: int, stop: int) -> Rays:
        time = None if self.time is None else self.time[start:stop]
        return Rays(
            self.origins[start:stop], self.directions[start:stop], self.near[start:stop], self.far[start:stop], time
        )


@dataclass(frozen=True)
class Round:
    """Samples of an earlier round of a sampler, with what it found there, which keeps its graph.

    weights [B]: rendering weights; colour [B, 3] after activation, or None where the round knows none.
    """

    samples: Samples
    weights: Tensor
    colour: Tensor | None = None


@dataclass(frozen=True)
class Rounds:
    """What a sampler gives: the samples that the field is trained on and rendered from, and the rounds before them."""

    samples: Samples
    earlier: tuple[Round, ...] = ()


@dataclass(frozen=True)
class FieldInput:
    """What a field is asked: positions, directions [n, 3] in world units; time [n] or None.

    `features` [n, anything] is what the field's own density pass kept for these points (see `KeepsFeatures`), or None.
    """

    positions: Tensor
    directions: Tensor
    time: Tensor | None = None
    features: Tensor | None = None

    def rows(self, index: Tensor) -> FieldInput:
        """The points at `index` [m]."""
        time = None if self.time is None else self.time[index]
        features = None if self.features is None else self.features[index]
        return FieldInput(self.positions[index], self.directions[index], time, features)


@dataclass(frozen=True)
class FieldOutput:
    """Outputs of a field at n points before its activations: colour [n, 3], density [n]."""

    colour: Tensor
    density: Tensor


@dataclass(frozen=True)
class Rendered:
    """Per ray: colour [R, 3] over the background, opacity [R], depth [R] (mean distance); weights [B] per sample."""

    colour: Tensor
    opacity: Tensor
    depth: Tensor
    weights: Tensor


@dataclass(frozen=True)
class LossReport:
    """`total` is what is minimised (a 0-d tensor with a graph); `mse` [] is the plain colour error for PSNR.

    `error` [R] is the mean square over the channels of each ray, before any weight.
    """

    total: Tensor
    mse: Tensor
    error: Tensor


@dataclass(frozen=True)
class Selection:
    """Samples chosen to train on: index [b] int64 into the batch; weight [b] multiplies their output gradients.

    tau [] is how concentrated the gradients of this step were, budget [] how many samples were worth training on.
    Unused places have weight 0 (see `mining.capacity`).
    """

    index: Tensor
    weight: Tensor
    tau: Tensor
    budget: Tensor


@dataclass(frozen=True)
class StepReport:
    """What one training step did, as plain numbers (reading it may synchronise; the loop reads it rarely).

    lost: rays that found no room for their samples.
    """

    step: int
    loss: float
    mse: float
    rays: int
    marched: int
    trained: int
    learning_rate: float
    finite: bool = True
    extra: dict[str, float] = field(default_factory=dict)
    lost: int = 0
