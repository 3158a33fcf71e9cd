"""Records that pass through a training step: rays, samples, field inputs and outputs, rendered rays, the loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from raymine.kernels.packed import Samples as Samples
from raymine.kernels.philox.op import uniform


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step. They are a function of (seed, step, stream, index), so no state is saved.

    first_ray, all_rays: the rays of this process are those from `first_ray` on, of `all_rays` rays of the step; None
    if the process has all of them. `of_rays` draws by their index among all. horizon: the steps that the run is planned
    for, for what changes by shares of the run; 0 if it is not known.
    """

    seed: int
    step: int
    device: torch.device
    first_ray: int = 0
    all_rays: int | None = None
    horizon: int = 0

    def uniform(self, stream: int, shape: tuple[int, ...], first: int = 0) -> Tensor:
        """Uniform float32 numbers in [0, 1) of this shape. Each purpose has its own stream.

        stream: a `philox.Stream`, or a number from 1000 up for streams of your own. first: index of the first number,
        for a stream that is drawn in several pieces.
        """
        return uniform(self.seed, self.step, stream, shape, self.device, first=first)

    def of_rays(self, stream: int, rays: int, numbers: int = 1) -> Tensor:
        """[rays, numbers] uniform in [0, 1): random numbers of the first `rays` rays of this process.

        A ray gets the same numbers whichever process has it.
        """
        return self.uniform(stream, (rays, numbers), first=self.first_ray * numbers)

    def rows_of_rays(self, stream: int, rows: int, rays: int) -> Tensor:
        """[rows, rays] uniform in [0, 1): as `of_rays`, but row by row."""
        if self.all_rays is None:
            return self.uniform(stream, (rows, rays))
        starts = (row * self.all_rays + self.first_ray for row in range(rows))
        return torch.stack([self.uniform(stream, (rays,), first=start) for start in starts])


@dataclass(frozen=True)
class Rays:
    """origins, directions (unit length) [R, 3] and near, far [R] in world units; time [R] in 0..1, None if static."""

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

    def detached(self) -> Rays:
        """The same rays without a graph to refined poses. Those that have none are returned as they are."""
        if not (self.origins.requires_grad or self.directions.requires_grad):
            return self
        return replace(self, origins=self.origins.detach(), directions=self.directions.detach())


class RayScale(Protocol):
    """A normalised distance s in 0..1 along each ray of a batch, in which a sampler spaces its samples."""

    def normalised(self, t: Tensor, ray: Tensor) -> Tensor:
        """Distances t [B] on the rays with indices `ray` [B] int64 -> s [B]; it ascends along a ray."""
        ...


@dataclass(frozen=True)
class Round:
    """An earlier round (proposal level) of a sampler: its samples and what was computed there, with a graph.

    weights [B]: rendering weights. colour [B, 3]: after activation, or None if the round computes no colour.
    scale: the normalised distance of the sampler, for loss terms that measure lengths in it; None if it has none.
    """

    samples: Samples
    weights: Tensor
    colour: Tensor | None = None
    scale: RayScale | None = None


@dataclass(frozen=True)
class Rounds:
    """The output of a sampler: the samples at which the field is trained and rendered, and the earlier rounds."""

    samples: Samples
    earlier: tuple[Round, ...] = ()


@dataclass(frozen=True)
class FieldInput:
    """The input of a field: positions [n, 3] in world units, unit directions [n, 3], time [n] in 0..1 or None.

    features [n, ...]: what the field's own density pass returned for these points (see `KeepsFeatures`), or None.
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

    @property
    def has_graph(self) -> bool:
        """Whether gradients are wanted of positions or directions, as where poses are refined."""
        return self.positions.requires_grad or self.directions.requires_grad


@dataclass(frozen=True)
class FieldOutput:
    """Outputs of a field at n points before its activations: colour [n, 3], density [n]."""

    colour: Tensor
    density: Tensor


@dataclass(frozen=True)
class Rendered:
    """Rendered rays: colour [R, 3] over the background, opacity [R] in 0..1, depth [R]; rendering weights [B].

    depth is the sum of weight times midpoint distance in `composite`; renderers divide it by the opacity.
    """

    colour: Tensor
    opacity: Tensor
    depth: Tensor
    weights: Tensor


@dataclass(frozen=True)
class LossReport:
    """total []: the loss that is minimised, with a graph. mse []: mean squared colour error, for PSNR.

    error [R]: squared colour error of each ray, averaged over channels, not weighted.
    """

    total: Tensor
    mse: Tensor
    error: Tensor


@dataclass(frozen=True)
class Selection:
    """Samples chosen to train on: index [b] int64 into the batch; weight [b] multiplies their output gradients.

    tau []: how concentrated the gradients of this step were (see `mining.draw`). budget []: how many samples were to be
    chosen. Unused entries have weight 0 (see `mining.capacity`).
    """

    index: Tensor
    weight: Tensor
    tau: Tensor
    budget: Tensor


@dataclass(frozen=True)
class StepReport:
    """What one training step did, as plain numbers.

    rays, marched, trained: numbers of rays, of samples placed and of samples trained on. finite: whether the loss and
    all gradients were finite; if not, no parameter changed. extra: numbers of the miner. lost: rays whose samples did
    not fit into the buffers of the fused step and were left out.
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
