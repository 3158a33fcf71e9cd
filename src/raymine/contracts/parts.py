"""What a model is made of: the protocols of fields, samplers and loss terms, and of the parts of a training state.

A config (`FieldConfig`, `SamplerConfig`, a `Term`) is a frozen dataclass: a value that can be compared and written to
`config.json`. Its `build` allocates. Whatever implements these protocols can be trained; nothing has to be registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from raymine.contracts.records import Draws, FieldInput, FieldOutput, Rays, Rendered, Round, Rounds, Samples
from raymine.contracts.scene import Bounds
from raymine.kernels.activations import NGP, Activations
from raymine.kernels.judge.op import Wanted

Scalars: TypeAlias = "dict[str, int | float | bool]"


@dataclass(frozen=True)
class Group:
    """Parameters of a part that are updated alike, by their names within the part.

    role: what they are, for people ("table", "network"). rate: multiplies the learning rate; decay: the weight decay.
    sparse: most elements get no gradient in a step; those are skipped, and momentum is that of tables.
    """

    role: str
    parameters: Mapping[str, nn.Parameter]
    rate: float = 1.0
    decay: float = 1.0
    sparse: bool = False


class Part(Protocol):
    """A named piece of a training state. State, checkpoint, optimiser and average know parts and nothing else.

    An `nn.Module` needs none of this: its parameters are one group of networks, and its persistent buffers are saved.
    """

    def groups(self) -> list[Group]:
        """What the optimiser updates."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What is saved, by name; copying saved values into these restores them."""
        ...

    def scalars(self) -> Scalars:
        """Numbers that are saved, by name."""
        ...

    def restored(self, scalars: Scalars) -> None:
        """Take saved numbers, and rebuild what is derived from the tensors, which have been copied by now."""
        ...


class Field(Protocol):
    """A radiance field: any `torch.nn.Module` with these two methods works with every sampler and policy.

    `density` is the cheap part (no direction needed); both return pre-activations, and the density pre-activation of
    `forward` equals that of `density` at the same points. `forward` is differentiable in the parameters. A field with
    other activations than exp(x - 1) and sigmoid has an attribute `activations` (`kernels.activations.Activations`).
    A field whose parameters differ in role has a method `groups` (see `Part`).
    """

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] world positions, [n] times -> [n] density before activation."""
        ...

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions -> pre-activations."""
        ...


@runtime_checkable
class HasActivations(Protocol):
    """A field that says how its pre-activations become density and colour."""

    @property
    def activations(self) -> Activations: ...


def activations_of(field: Field) -> Activations:
    """How the pre-activations of a field become density and colour: its own way, or exp(x - 1) and sigmoid."""
    return field.activations if isinstance(field, HasActivations) else NGP


@runtime_checkable
class KeepsFeatures(Protocol):
    """A field whose density pass yields work that `forward` need not repeat, handed back in `FieldInput.features`."""

    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[n, 3] -> [n] density before activation, and [n, anything] features; neither has a graph."""
        ...


@runtime_checkable
class SeesAlongRays(Protocol):
    """A field that is quicker when asked about whole rays at once, since it stops where they are opaque.

    along_rays: whether it has a kernel for that where its parameters are now. If False, callers use `forward` instead.
    """

    @property
    def along_rays(self) -> bool: ...

    def infer(
        self, rays: Rays, samples: Samples, stop: float, faint: float, *, colour: bool, keep: bool
    ) -> tuple[FieldOutput, Tensor]:
        """Pre-activations [B] at midpoints without a graph, and features [B, anything] for `FieldInput`.

        colour: whether colours are wanted; keep: whether features are (else [0, anything]). Density is HIDDEN where the
        transmittance before a sample is below `stop` or its own opacity is below `faint`.
        """
        ...


@runtime_checkable
class PullsBack(Protocol):
    """A field that turns output gradients into parameter gradients quicker than autograd does."""

    def pull_back(self, query: FieldInput, colour: Tensor, density: Tensor) -> None:
        """Add to `.grad` of every parameter, given gradients of the pre-activations: colour [n, 3], density [n]."""
        ...


class Sampler(Protocol):
    """Places packed samples along rays. It may hold state (then it is a `Part` or a module) and ask the field."""

    def sample(self, rays: Rays, field: Field, draws: Draws | None = None) -> Rounds:
        """Samples of rays [R]. draws: the random numbers of a training step; None places samples without them.

        In training, earlier rounds may keep a graph into parameters of the sampler; loss terms read them.
        """
        ...


@runtime_checkable
class PreparesStep(Protocol):
    """A sampler that follows the field: an occupancy grid to update, a schedule to advance."""

    def before_step(self, field: Field, draws: Draws, times: Tensor | None) -> None:
        """Called before every training step. times [I]: those of the training images; None for a static scene."""
        ...


@dataclass(frozen=True)
class ParameterView:
    """What a loss term over parameters reads: those of every part, as `part.name`, and the step."""

    parameters: Mapping[str, Tensor]
    step: int


@dataclass(frozen=True)
class LossView(ParameterView):
    """What other loss terms read as well: the rays [R] of a step, what they should show, and what was rendered.

    rendered, samples and output are those of the last round, over its samples [B]; rounds are the earlier ones. The
    loss is differentiated in `output` and in `rounds`.
    """

    rays: Rays
    wanted: Wanted
    samples: Samples
    output: FieldOutput
    rendered: Rendered
    rounds: tuple[Round, ...]


Reads = Literal["rays", "samples", "rounds", "parameters"]


class Term(Protocol):
    """One entry of the loss: a frozen dataclass that maps what it reads to a number [].

    reads: `rays` (rendered colour, opacity, depth), `samples` (weights and pre-activations), `rounds` (what earlier
    rounds of the sampler found) or `parameters`. A term over parameters has no samples to mine: its gradient goes
    straight to the optimiser.
    """

    reads: ClassVar[Reads]

    def __call__(self, view: LossView) -> Tensor: ...


@dataclass(frozen=True)
class Memory:
    """Bytes that training a part takes: fixed (parameters, gradients, moments) and for each sample of a step."""

    fixed: int = 0
    per_sample: int = 0


@runtime_checkable
class EstimatesMemory(Protocol):
    """A config that knows, before anything is allocated, what its part will take."""

    def memory(self, bounds: Bounds) -> Memory: ...


class FieldConfig(Protocol):
    """A frozen dataclass that builds a field."""

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> Field:
        """A new field, which is an `nn.Module`, on `device`; its parameters are a function of the seed."""
        ...


class SamplerConfig(Protocol):
    """A frozen dataclass that builds a sampler."""

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> Sampler:
        """A new sampler whose tensors, if it has any, are on `device`."""
        ...


class ImageSource(Protocol):
    """Decoded pixels of a scene, without the images having to be in memory."""

    @property
    def sizes(self) -> np.ndarray:
        """[I, 2] int64: height and width of each image."""
        ...

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """[R] indices -> [R, 4] float32 straight-alpha RGBA in 0..1 (alpha 1 for opaque images), [R] mask weight."""
        ...

    def image(self, index: int) -> np.ndarray:
        """One whole image, [H, W, 4] uint8."""
        ...

    def mask(self, index: int) -> np.ndarray | None:
        """Its mask, [H, W] uint8, 0 where a pixel is to be ignored; None where it has none."""
        ...


class Renderer(Protocol):
    """Renders any number of rays without a graph, in chunks of its own choosing."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """[R] rays over one background colour [3]; `Rendered.weights` is empty here."""
        ...
