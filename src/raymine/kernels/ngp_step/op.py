"""The hash-grid field along rays, fused into one op: checks and dispatch (definition in `reference`).

Not differentiable; `train` computes the gradients of the parameters explicitly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.activations import HIDDEN as HIDDEN
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.ngp_step import reference
from raymine.kernels.ngp_step.inputs import DEGREE as DEGREE
from raymine.kernels.ngp_step.inputs import WIDTH as WIDTH
from raymine.kernels.ngp_step.inputs import Box as Box
from raymine.kernels.ngp_step.inputs import to_unit_cube as to_unit_cube
from raymine.kernels.packed import Samples


class Network(NamedTuple):
    """A hash-grid field: table [entries, F], weights [inputs, outputs] of layers without bias, and its box.

    density: two layers; column 0 of the output is the density pre-activation. colour: one or more layers. The first
    takes the output of `density` followed by the encoded direction; the last has 3 outputs.
    """

    table: Tensor
    spec: GridSpec
    density: tuple[Tensor, ...]
    colour: tuple[Tensor, ...]
    box: Box


class Inferred(NamedTuple):
    """Pre-activations: colour [B, 3], density [B].

    features [B, L * F]: the encodings, for `train`; uninitialised where density is HIDDEN. [0, L * F] if keep=False.
    """

    colour: Tensor
    density: Tensor
    features: Tensor


def infer(
    network: Network,
    origins: Tensor,
    directions: Tensor,
    samples: Samples,
    stop: float,
    faint: float,
    *,
    colour: bool = True,
    keep: bool = False,
) -> Inferred:
    """Evaluate the field at the midpoints of samples, front to back, until the ray's transmittance falls below `stop`.

    origins, directions: [R, 3] in world units; directions of unit length.
    stop, faint: as in `composite.visible`. An invisible sample gets density HIDDEN, whose activation is 0, and colour
        0.
    colour: if False, all colours are 0. keep: whether to return the features.
    Returns pre-activations. Not differentiable.
    """
    n, rays, device = len(samples), samples.n_rays, origins.device
    named = (
        ("origins", origins, (rays, 3)),
        ("directions", directions, (rays, 3)),
        ("t_start", samples.t_start, (n,)),
        ("t_end", samples.t_end, (n,)),
    )
    kind = checks.floats(named, device)
    _check(network, device, kind)
    checks.numbers(stop=stop, faint=faint)
    first, count = checks.pack(samples.first, samples.count, n, device)
    samples = replace(samples, first=first, count=count)
    with torch.no_grad():
        if _fits(network, kind):
            with dispatch.kernel_lock:
                kernels = dispatch.kernels("ngp_step", "cpu")
                return Inferred(*kernels.infer(*network, origins, directions, samples, stop, faint, colour, keep))
        return Inferred(*reference.infer(*network, origins, directions, samples, stop, faint, colour, keep))


class Pixels(NamedTuple):
    """Rendered rays: colour [R, 3] over the background, opacity [R], depth [R] (sum of weight times distance)."""

    colour: Tensor
    opacity: Tensor
    depth: Tensor


def render(
    network: Network,
    origins: Tensor,
    directions: Tensor,
    samples: Samples,
    background: Tensor,
    stop: float,
    faint: float,
) -> Pixels:
    """Render rays [R] over one background colour [3]: `infer`, the activations `NGP` and `composite` in one.

    Arguments as in `infer`. Nothing is stored for a sample. Not differentiable.
    """
    n, rays, device = len(samples), samples.n_rays, origins.device
    named = (
        ("origins", origins, (rays, 3)),
        ("directions", directions, (rays, 3)),
        ("t_start", samples.t_start, (n,)),
        ("t_end", samples.t_end, (n,)),
        ("background", background, (3,)),
    )
    kind = checks.floats(named, device)
    _check(network, device, kind)
    checks.numbers(stop=stop, faint=faint)
    first, count = checks.pack(samples.first, samples.count, n, device)
    samples = replace(samples, first=first, count=count)
    with torch.no_grad():
        if _fits(network, kind):
            with dispatch.kernel_lock:
                kernels = dispatch.kernels("ngp_step", "cpu")
                return Pixels(*kernels.render(*network, origins, directions, samples, background, stop, faint))
        return Pixels(*reference.render(*network, origins, directions, samples, background, stop, faint))


class Gradients(NamedTuple):
    """Gradients of a `Network`.

    rows [m] int64, values [m, F]: rows of the table that some sample uses, and their gradients. layers: gradients of
    the density layers, then of the colour layers.
    """

    rows: Tensor
    values: Tensor
    layers: tuple[Tensor, ...]


def train(
    network: Network,
    positions: Tensor,
    directions: Tensor,
    colour_grad: Tensor,
    density_grad: Tensor,
    known: Tensor | None = None,
) -> Gradients:
    """Gradients of the parameters from the gradients of the outputs. It runs the forward and the backward.

    positions, directions: [b, 3]; positions in world units, directions of unit length.
    colour_grad [b, 3], density_grad [b]: gradients of the loss with respect to the pre-activations.
    known: the features [b, L * F] of these samples, if `infer` has kept them.
    A row of the table may be listed although its gradient is 0. Not differentiable.
    """
    n, device = positions.shape[0] if positions.ndim else 0, positions.device
    named = (
        ("positions", positions, (n, 3)),
        ("directions", directions, (n, 3)),
        ("colour_grad", colour_grad, (n, 3)),
        ("density_grad", density_grad, (n,)),
        ("known", known, (n, network.spec.width)),
    )
    kind = checks.floats(named, device)
    _check(network, device, kind)
    with torch.no_grad():
        if _fits(network, kind):
            with dispatch.kernel_lock:
                kernels = dispatch.kernels("ngp_step", "cpu")
                return Gradients(*kernels.train(*network, positions, directions, colour_grad, density_grad, known))
        return Gradients(*reference.train(*network, positions, directions, colour_grad, density_grad))


def _fits(network: Network, kind: torch.dtype) -> bool:
    """Whether the Numba kernels can take the network: float32 on the CPU, hidden colour layers of one width."""
    widths = {(weight.shape[1] + 7) // 8 for weight in network.colour[:-1]}
    return kind is torch.float32 and len(widths) < 2 and dispatch.choose("ngp_step", network.table.device) == "cpu"


def _check(network: Network, device: torch.device, kind: torch.dtype) -> None:
    """Raise ConfigError for layers that do not fit together, and for tensors of another type or on another device."""
    if len(network.density) != 2 or not network.colour:
        raise ConfigError(
            "a hash-grid network has two density layers and at least one colour layer; "
            f"got {len(network.density)} and {len(network.colour)}."
        )
    inputs = network.spec.width
    for i, weight in enumerate((*network.density, *network.colour)):
        wanted_inputs = inputs + WIDTH if i == 2 else inputs
        if weight.ndim != 2 or weight.shape[0] != wanted_inputs or not weight.shape[1]:
            raise ConfigError(f"layer {i} must have {wanted_inputs} inputs, got weights of shape {list(weight.shape)}.")
        inputs = weight.shape[1]
    if inputs != 3:
        raise ConfigError(f"the last layer must have 3 outputs, got {inputs}.")
    named = (
        ("table", network.table, (network.spec.total_entries, network.spec.features)),
        ("low", network.box.low, (3,)),
        ("high", network.box.high, (3,)),
        *((f"layer {i}", weight, weight.shape) for i, weight in enumerate((*network.density, *network.colour))),
    )
    checks.floats(named, device, kind)
