"""The hash-grid field along rays, fused into one op: checks and dispatch (definition in `reference`).

Not differentiable; `train` computes the gradients of the parameters explicitly.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
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
    n, rays = len(samples), samples.n_rays
    for name, value, shape in (
        ("origins", origins, (rays, 3)),
        ("directions", directions, (rays, 3)),
        ("t_end", samples.t_end, (n,)),
        ("count", samples.count, (rays,)),
    ):
        if tuple(value.shape) != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
    _check(network)
    with torch.no_grad():
        if dispatch.choose("ngp_step", origins.device) == "cpu":
            from raymine.kernels.ngp_step import cpu

            with dispatch.kernel_lock:
                return Inferred(*cpu.infer(*network, origins, directions, samples, stop, faint, colour, keep))
        return Inferred(*reference.infer(*network, origins, directions, samples, stop, faint, colour, keep))


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
    n = positions.shape[0]
    for name, value, shape in (
        ("positions", positions, (n, 3)),
        ("directions", directions, (n, 3)),
        ("colour_grad", colour_grad, (n, 3)),
        ("density_grad", density_grad, (n,)),
        ("known", known, (n, network.spec.width)),
    ):
        if value is not None and tuple(value.shape) != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
    _check(network)
    with torch.no_grad():
        if dispatch.choose("ngp_step", positions.device) == "cpu":
            from raymine.kernels.ngp_step import cpu

            with dispatch.kernel_lock:
                return Gradients(*cpu.train(*network, positions, directions, colour_grad, density_grad, known))
        return Gradients(*reference.train(*network, positions, directions, colour_grad, density_grad))


def _check(network: Network) -> None:
    wanted = (network.spec.total_entries, network.spec.features)
    if tuple(network.table.shape) != wanted:
        raise ConfigError(f"`table` must have shape {list(wanted)}, got {list(network.table.shape)}.")
    if len(network.density) != 2 or not network.colour:
        raise ConfigError(
            "a hash-grid network has two density layers and at least one colour layer; "
            f"got {len(network.density)} and {len(network.colour)}."
        )
    inputs = network.spec.width
    for i, weight in enumerate((*network.density, *network.colour)):
        wanted_inputs = inputs + WIDTH if i == 2 else inputs
        if weight.ndim != 2 or weight.shape[0] != wanted_inputs:
            raise ConfigError(f"layer {i} must have {wanted_inputs} inputs, got weights of shape {list(weight.shape)}.")
        inputs = weight.shape[1]
    if inputs != 3:
        raise ConfigError(f"the last layer must have 3 outputs, got {inputs}.")
