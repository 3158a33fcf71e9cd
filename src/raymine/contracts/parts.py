"""Protocols of fields, samplers and loss terms, and of the parts of a training state.

A config (`FieldConfig`, `SamplerConfig`, a `Term`) is a frozen dataclass: a value that can be compared and written to
`config.json`. Its `build` allocates memory. Any class that implements these protocols can be trained; there is no
registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from raymine.contracts.records import Draws, FieldInput, FieldOutput, Rays, Rendered, Round, Rounds, Samples
from raymine.contracts.scene import Bounds
from raymine.kernels.activations import NGP, Activations
from raymine.kernels.judge.op import Wanted
from raymine.kernels.threads import total

Scalars: TypeAlias = "dict[str, int | float | bool]"


@dataclass(frozen=True)
class Group:
    """A parameter group: parameters of a part, by their names in the part, that the optimiser treats alike.

    role: a name for people to read ("table", "network"). rate: factor on the learning rate. decay: factor on the weight
    decay. sparse: most elements get no gradient in a step; the update skips those, and beta1 is `table_beta1`.
    levels: for a sparse table, the number of rows of each of its levels, which lie one after another; see
    `OptimiserConfig.level_decay`. () if it has no levels.
    """

    role: str
    parameters: Mapping[str, nn.Parameter]
    rate: float = 1.0
    decay: float = 1.0
    sparse: bool = False
    levels: tuple[int, ...] = ()


class Part(Protocol):
    """A named part of a training state: field, sampler, optimiser, ... It is saved, restored and optimised as such.

    An `nn.Module` need not implement this protocol: its parameters form one group, and its parameters and persistent
    buffers are saved.
    """

    def groups(self) -> list[Group]:
        """The parameters that the optimiser updates."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name. Copying saved values into them restores them."""
        ...

    def scalars(self) -> Scalars:
        """The numbers to save, by name."""
        ...

    def restored(self, scalars: Scalars) -> None:
        """Take over the saved numbers and recompute what depends on the tensors. They have been copied before this."""
        ...


class Field(Protocol):
    """A radiance field: any `torch.nn.Module` with these two methods works with every sampler and policy.

    Both methods return pre-activations. `density` is cheaper, since it needs no directions; it returns the same
    density pre-activation as `forward` at the same points. `forward` is differentiable in the parameters. A field with
    activations other than exp(x - 1) for density and sigmoid for colour has an attribute `activations`
    (`kernels.activations.Activations`). A field with several parameter groups has a method `groups` (see `Part`).
    """

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] world positions, [n] times -> [n] density before activation."""
        ...

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions -> pre-activations."""
        ...


class DensityField(Protocol):
    """A module that has density alone, such as a proposal network. Every `Field` is one too."""

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] world positions, [n] times -> [n] density before activation. Differentiable in the parameters."""
        ...


@runtime_checkable
class HasActivations(Protocol):
    """A field with activations of its own for density and colour."""

    @property
    def activations(self) -> Activations: ...


def activations_of(field: DensityField) -> Activations:
    """The activations of a field: its own, or exp(x - 1) for density and sigmoid for colour."""
    return field.activations if isinstance(field, HasActivations) else NGP


@runtime_checkable
class KeepsFeatures(Protocol):
    """A field whose density pass returns features that `forward` can reuse (`FieldInput.features`)."""

    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[n, 3] -> [n] density before activation, and [n, anything] features; neither has a graph."""
        ...


@runtime_checkable
class SeesAlongRays(Protocol):
    """A field that evaluates whole rays faster, front to back, because it stops where a ray is opaque.

    along_rays: whether it has such a kernel on the device of its parameters. If False, callers use `forward` instead.
    """

    @property
    def along_rays(self) -> bool: ...

    def infer(
        self, rays: Rays, samples: Samples, stop: float, faint: float, *, colour: bool, keep: bool
    ) -> tuple[FieldOutput, Tensor]:
        """Pre-activations [B] at the midpoints of the samples, and features [B, ...] for `FieldInput`. No graph.

        colour: compute colours too. keep: return features too (else [0, ...]). Density is HIDDEN where the
        transmittance before a sample is below `stop` or the sample's own opacity is below `faint`.
        """
        ...


@runtime_checkable
class RendersRays(SeesAlongRays, Protocol):
    """A field that also renders whole rays at once, without anything stored for their samples."""

    def render(self, rays: Rays, samples: Samples, background: Tensor, stop: float, faint: float) -> Rendered:
        """Rays [R] over one background colour [3], as `infer` and `composite` would. `weights` is empty. No graph."""
        ...


@runtime_checkable
class PullsBack(Protocol):
    """A field that computes parameter gradients from output gradients faster than autograd does."""

    def pull_back(self, query: FieldInput, colour: Tensor, density: Tensor) -> None:
        """Add to `.grad` of every parameter. colour [n, 3], density [n]: gradients of the pre-activations."""
        ...


@runtime_checkable
class FadesLevels(Protocol):
    """A field with levels of detail (of a grid, or frequencies) that can be faded in from coarse to fine.

    Poses are refined with coarse levels first: the gradient of fine detail leads a pose astray that is further off than
    the detail is wide. A field without this method is trained with all of its detail from the start.
    """

    def fade_levels(self, share: float) -> None:
        """Use this share, in 0..1, of the levels, from the coarsest on; 1 is the field as it is without fading.

        The last one of them may be used in part (`fields.levels.level_weights`). This changes no parameter and is not
        saved: callers set it again after the field was restored. Weights that exist are changed in place, because a
        CUDA graph reads them where they were when it was captured (`fields.levels.in_place`).
        """
        ...


@runtime_checkable
class PreparesField(Protocol):
    """A field that changes its structure with training, such as a grid that becomes finer.

    Parameters keep their shapes: what moves are their rows. What follows from the change must be a function of saved
    tensors and numbers, so that a resumed run goes on as it would have.
    """

    def before_step(self, draws: Draws) -> Mapping[str, Tensor] | None:
        """Called before every training step; None where nothing moved.

        Else, for each parameter (by name) whose rows moved, the row [rows] int64 that each of its rows was before, or
        -1. Moments of the optimiser move along and are 0 for -1; the average of the field begins anew.
        """
        ...


@runtime_checkable
class HasVariation(Protocol):
    """A field with neighbouring parameters, such as the vertices of a grid, whose differences can be penalised."""

    def variation(self, step: int | Tensor) -> Tensor:
        """[] the mean squared difference of neighbours (`losses.TotalVariation`). Differentiable in the parameters.

        step: of training, for a field that looks at some of its parameters in each step; see `ParameterView`.
        """
        ...


class Sampler(Protocol):
    """Places packed samples along rays. It may query the field. If it has state, it is a `Part` or a module."""

    def sample(self, rays: Rays, field: Field, draws: Draws | None = None) -> Rounds:
        """The samples of rays [R]. draws: random numbers of a training step; None places samples deterministically.

        In training, earlier rounds (proposal levels) may keep a graph to the sampler's own parameters, for loss terms.
        """
        ...


@runtime_checkable
class PreparesStep(Protocol):
    """A sampler that changes with training: it updates an occupancy grid, or advances a schedule."""

    def before_step(self, field: Field, draws: Draws, times: Tensor | None) -> None:
        """Called before every training step. times [I]: time of each training image; None for a static scene."""
        ...


@dataclass(frozen=True)
class ParameterView:
    """The input of a loss term over parameters: the parameters of all parts, as `part.name`, the step and the field.

    step: a number; in a captured step, which the host does not follow, a tensor [] on the device.
    field: the field that is trained, for terms that know more of it than its parameters; None if there is none.
    cameras [I, 3, 4]: camera-to-world poses of the training images, before any refinement; None if they are not known.
    """

    parameters: Mapping[str, Tensor]
    step: int | Tensor
    field: Field | None = dataclass_field(default=None, kw_only=True)
    cameras: Tensor | None = dataclass_field(default=None, kw_only=True)


@dataclass(frozen=True)
class Targets:
    """Further targets of rays [R], for loss terms that ask for them by a class variable `targets`; None if unknown.

    alpha [R]: of the pixel, in 0..1. depth [R]: the distance along the ray in world units, 0 where it is not known.
    """

    alpha: Tensor | None = None
    depth: Tensor | None = None


NO_TARGETS = Targets()


def _same(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True)
class RayShare:
    """The rays of this process among those of all processes that train the run.

    all_rays: the number of rays of the step; 0: this process has all of them. weight_sum []: the sum of all their
    weights; None likewise. over_ranks: the sum of a number [] over all processes, without a graph.
    """

    all_rays: int = 0
    weight_sum: Tensor | None = None
    over_ranks: Callable[[Tensor], Tensor] = _same


ALL_RAYS = RayShare()
"""All rays of a step, in one process."""


@dataclass(frozen=True)
class LossView(ParameterView):
    """The input of every other loss term: in addition the rays [R] of a step, their targets and what was rendered.

    samples [B], output and rendered belong to the last round of the sampler; `rounds` are the earlier rounds. The loss
    is differentiated with respect to `output` and `rounds`. share: these rays among those of all processes.
    """

    rays: Rays
    wanted: Wanted
    samples: Samples
    output: FieldOutput
    rendered: Rendered
    rounds: tuple[Round, ...]
    targets: Targets = NO_TARGETS
    share: RayShare = ALL_RAYS

    @property
    def weight_sum(self) -> Tensor:
        """[] the sum of the pixel weights of all rays of the step, at least 1: what a mean over rays divides by."""
        own = self.share.weight_sum
        return (total(self.wanted.weight) if own is None else own).clamp_min(1.0)

    @property
    def all_rays(self) -> int:
        """The number of rays of the step, those of other processes included."""
        return self.share.all_rays or len(self.rays)


Reads = Literal["rays", "samples", "rounds", "parameters"]


class Term(Protocol):
    """One term of the loss: a frozen dataclass that computes a scalar [] from its view.

    reads: what the term depends on. `rays`: rendered colour, opacity, depth. `samples`: weights and pre-activations.
    `rounds`: the sampler's earlier rounds. `parameters`: parameters alone; such a term takes no part in mining, and its
    gradient goes directly to the parameters.

    With several processes, each has a part of the rays, and what the terms give is summed. A term with a class variable
    `shared` = True divides by sums over all rays (`LossView.weight_sum`, `all_rays`, `share.over_ranks`). Any other
    term is taken for a mean over its rays and multiplied by their share of all rays.
    """

    reads: ClassVar[Reads]

    def __call__(self, view: LossView) -> Tensor: ...


def targets_of(loss: Sequence[Term]) -> frozenset[str]:
    """The fields of `Targets` that some term of a loss asks for."""
    return frozenset(name for term in loss for name in getattr(term, "targets", ()))


@dataclass(frozen=True)
class Memory:
    """Bytes that training a part needs: fixed (parameters, gradients, moments) and per sample of a step."""

    fixed: int = 0
    per_sample: int = 0


@runtime_checkable
class EstimatesMemory(Protocol):
    """A config that can estimate the memory of its part before anything is allocated."""

    def memory(self, bounds: Bounds) -> Memory: ...


class FieldConfig(Protocol):
    """A frozen dataclass that builds a field. One whose field depends on time has an attribute `dynamic` = True."""

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> Field:
        """A new field, which is an `nn.Module`, on `device`; its initial parameters are a function of the seed."""
        ...


class DensityConfig(Protocol):
    """A frozen dataclass that builds a `DensityField`. Every `FieldConfig` is one too."""

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> DensityField:
        """A new `nn.Module` on `device`; its initial parameters are a function of the seed."""
        ...


class SamplerConfig(Protocol):
    """A frozen dataclass that builds a sampler."""

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> Sampler:
        """A new sampler. Its tensors, if any, are on `device`."""
        ...


class ImageSource(Protocol):
    """The pixels of a scene's images. The images need not be in memory."""

    @property
    def sizes(self) -> np.ndarray:
        """[I, 2] int64: height and width of each image."""
        ...

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels [R] -> straight-alpha RGBA [R, 4] float32 in 0..1 (alpha 1 for opaque images), mask weights [R]."""
        ...

    def image(self, index: int) -> np.ndarray:
        """One whole image, [H, W, 4] uint8 RGBA with straight alpha."""
        ...

    def mask(self, index: int) -> np.ndarray | None:
        """The mask of an image, [H, W] uint8, 0 where a pixel is ignored; None if it has no mask."""
        ...


@runtime_checkable
class ReadsRows(Protocol):
    """An `ImageSource` that reads rows of an image without the rest of it."""

    @property
    def masked(self) -> bool:
        """Whether any image has a mask."""
        ...

    def read_rows(self, index: int, top: int, pixels: np.ndarray, mask: np.ndarray | None) -> None:
        """Fill pixels [h, W, 4] uint8 with rows top .. top + h of an image, and mask [h, W] uint8 likewise.

        mask: 255 for an image without one; None if it is not wanted. Several threads may read at once.
        """
        ...


class Renderer(Protocol):
    """Renders any number of rays without a graph. It chooses the size of its chunks itself."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """Render rays [R] over one background colour [3] in 0..1. `Rendered.weights` is empty here."""
        ...
