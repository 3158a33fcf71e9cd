"""Rendering: queries of a field at samples, visibility, compositing, and a renderer that works in chunks.

A pre-activation is an output of the field before its activation. `stop` is the transmittance below which a sample is
hidden, `faint` the opacity of a single sample below which it is left out.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raymine.contracts import (
    Field,
    FieldInput,
    FieldOutput,
    KeepsFeatures,
    Rays,
    Rendered,
    RendersRays,
    Sampler,
    Samples,
    SeesAlongRays,
    activations_of,
)
from raymine.kernels.activations import HIDDEN as HIDDEN
from raymine.kernels.activations import NGP, Activations
from raymine.kernels.composite.op import composite, visible
from raymine.kernels.select.op import compact

SEEN = 1e-5
"""The renderer leaves out samples with an opacity below this: far less than half a level of an 8-bit picture."""

_WHOLE = 4
"""See `VolumeRenderer`. Fewer and larger kernels wait less often for their threads: a view of 106,400 rays took 2.5
instead of 3.1 s of processor time on 2 cores beside other processes. Samples of 2^15 rays are about 70 MB."""


def query_points(rays: Rays, samples: Samples) -> FieldInput:
    """The query of a field at the midpoint of every sample [B]. Differentiable in origins and directions."""
    middle = (samples.t_start + samples.t_end) * 0.5
    directions = _of_rays(rays.directions, samples.ray_id)
    positions = torch.addcmul(_of_rays(rays.origins, samples.ray_id), directions, middle[:, None])
    return FieldInput(positions, directions, None if rays.time is None else rays.time[samples.ray_id])


def _of_rays(values: Tensor, ray_id: Tensor) -> Tensor:
    """values [R, 3] of the rays ray_id [B]."""
    # On CUDA the gradient of indexing sorts: 25 of 33 ms of a step that refines poses, 2^20 samples on an H200. That of
    # `index_select` adds by atomics. On a CPU it adds slice by slice, and indexing is quicker.
    return values.index_select(0, ray_id) if values.is_cuda else values[ray_id]


def subset(samples: Samples, keep: Tensor) -> tuple[Samples, Tensor]:
    """The samples where `keep` [B] is true, as a new packing, and their indices [b] in the old one."""
    index, first, count = compact(keep, samples.count)
    return Samples(samples.t_start[index], samples.t_end[index], samples.ray_id[index], first, count), index


def composite_output(
    output: FieldOutput, samples: Samples, background: Tensor, stop: float = 1e-4, activations: Activations = NGP
) -> Rendered:
    """Composite pre-activations [B] over a background [R, 3]. Differentiable in the output and the background."""
    density, colour = activations.density(output.density), activations.colour(output.colour)
    return Rendered(*composite(density, colour, samples, background, stop))


@torch.no_grad()
def visible_samples(
    field: Field, rays: Rays, samples: Samples, stop: float = 1e-4, faint: float = 0.0
) -> tuple[Samples, FieldInput]:
    """The visible samples, found by a density pass without a graph, and the query at these samples."""
    if isinstance(field, SeesAlongRays) and field.along_rays:
        output, features = field.infer(rays, samples, stop, faint, colour=False, keep=True)
        kept, index = subset(samples, output.density != HIDDEN)
        return kept, replace(query_points(rays, kept), features=features[index])
    query = query_points(rays, samples)
    density, found = density_pass(field, query)
    kept, index = subset(samples, visible(density, samples, stop, faint))
    return kept, replace(query, features=found).rows(index)


@torch.no_grad()
def first_pass(
    field: Field, rays: Rays, samples: Samples, stop: float = 1e-4, faint: float = 0.0, *, keep: bool = False
) -> tuple[FieldOutput, Tensor | None]:
    """Pre-activations [B] without a graph. Hidden and faint samples have the density HIDDEN, which renders as nothing.

    keep: also return the features [B, ...] that the field keeps for a second pass (`contracts.KeepsFeatures`); they are
    unset where density is HIDDEN. None without `keep`, or if the field keeps none. On CUDA, samples behind `stop` keep
    their own density: rendering with the same `stop` leaves them out.
    """
    if isinstance(field, SeesAlongRays) and field.along_rays:
        output, kept = field.infer(rays, samples, stop, faint, colour=True, keep=keep)
        return output, kept if keep else None
    query = query_points(rays, samples)
    if rays.origins.is_cuda:
        # Which samples are visible is known to the device alone, and learning it would make the host wait.
        output = field.forward(query)
        if faint > 0:
            seen = visible(activations_of(field).density(output.density), samples, stop, faint)
            output = replace(output, density=torch.where(seen, output.density, HIDDEN))
        return output, None
    density, features = density_pass(field, query)
    index = visible(density, samples, stop, faint).nonzero()[:, 0]
    output = field.forward(replace(query, features=features).rows(index))
    colour = output.colour.new_zeros(len(samples), 3)
    raw = output.density.new_full((len(samples),), HIDDEN)
    colour[index], raw[index] = output.colour, output.density
    return FieldOutput(colour, raw), features if keep else None


def take(samples: Samples, index: Tensor) -> Samples:
    """The samples at `index` [b]; `first` and `count` still describe the whole packing."""
    return replace(samples, t_start=samples.t_start[index], t_end=samples.t_end[index], ray_id=samples.ray_id[index])


@torch.no_grad()
def density_pass(field: Field, query: FieldInput) -> tuple[Tensor, Tensor | None]:
    """Density [n] after activation, and the features that the field keeps for `forward`, or None. No graph."""
    activate = activations_of(field).density
    if isinstance(field, KeepsFeatures):
        raw, features = field.density_and_features(query.positions, query.time)
        return activate(raw), features
    return activate(field.density(query.positions, query.time)), None


@torch.no_grad()
def visible_front_to_back(
    field: Field, rays: Rays, samples: Samples, stop: float, first_samples: int = 32
) -> tuple[Samples, FieldInput]:
    """As `visible_samples` with `faint` = SEEN, but it queries the field along a ray only until the ray is opaque.

    The first query takes the first `first_samples` samples of each ray. Each further query reaches three times as far,
    on the rays whose transmittance is still above `stop`.
    """
    place = torch.arange(len(samples), device=samples.ray_id.device) - samples.first[samples.ray_id]
    length = samples.t_end - samples.t_start
    density, optical = torch.zeros_like(length), length.new_zeros(samples.n_rays)
    row = torch.zeros_like(samples.ray_id)
    features: list[Tensor] = []
    asked, low, high = 0, 0, first_samples
    while True:
        is_open = optical <= -math.log(max(stop, 1e-30))
        index = ((place >= low) & (place < high) & is_open[samples.ray_id]).nonzero()[:, 0]
        if not len(index):
            break
        density[index], kept = density_pass(field, query_points(rays, take(samples, index)))
        optical.index_add_(0, samples.ray_id[index], density[index] * length[index])
        if kept is not None:
            row[index] = torch.arange(asked, asked + len(index), device=row.device)
            features.append(kept)
        asked, low, high = asked + len(index), high, 3 * high
    seen, index = subset(samples, visible(density, samples, stop, SEEN))
    query = query_points(rays, seen)
    return seen, replace(query, features=torch.cat(features)[row[index]]) if features else query


@dataclass(frozen=True)
class VolumeRenderer:
    """Renders any number of rays without a graph (see `contracts.Renderer`).

    To bound memory, it marches `chunk` rays at a time and renders them in groups of about `batch` marched samples.
    Within a group it queries the field from front to back, until a ray's transmittance falls below `stop`. A field that
    renders whole rays (`contracts.RendersRays`) keeps nothing for a sample and takes `_WHOLE` times as many of both.
    """

    field: Field
    sampler: Sampler
    chunk: int = 1 << 13
    batch: int = 1 << 18
    stop: float = 1e-4

    @torch.no_grad()
    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """Render rays [R] over one background colour [3]. Depth: weighted mean distance, 0 where nothing is hit."""
        device = rays.origins.device
        background = background.to(device)
        colour, opacity, depth = (torch.empty(len(rays), *tail, device=device) for tail in ((3,), (), ()))
        larger = _WHOLE if isinstance(self.field, RendersRays) and self.field.along_rays else 1
        for start in range(0, len(rays), self.chunk * larger):
            part = rays.slice(start, min(start + self.chunk * larger, len(rays)))
            samples = self.sampler.sample(part, self.field).samples
            for low, high in _groups(samples, self.batch * larger):
                out = self._group(part.slice(low, high), _rows(samples, low, high), background)
                at = slice(start + low, start + high)
                colour[at], opacity[at] = out.colour, out.opacity
                depth[at] = out.depth / out.opacity.clamp_min(1e-6)
        return Rendered(colour, opacity, depth, torch.empty(0, device=device))

    def _group(self, rays: Rays, samples: Samples, background: Tensor) -> Rendered:
        if isinstance(self.field, RendersRays) and self.field.along_rays:
            return self.field.render(rays, samples, background, self.stop, SEEN)
        if isinstance(self.field, SeesAlongRays) and self.field.along_rays:
            output, _ = first_pass(self.field, rays, samples, self.stop, SEEN)
        else:
            samples, query = visible_front_to_back(self.field, rays, samples, self.stop)
            output = self.field.forward(query)
        behind = background.expand(len(rays), 3)
        return composite_output(output, samples, behind, self.stop, activations_of(self.field))


def _groups(samples: Samples, batch: int) -> list[tuple[int, int]]:
    """Ranges of rays with about `batch` samples each: a range ends where the running total passes a multiple of it."""
    last = samples.first + samples.count
    cut = torch.nonzero(torch.diff(last // batch, append=last[-1:] // batch))[:, 0] + 1
    edges = [0, *cut.tolist(), samples.n_rays]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def _rows(samples: Samples, low: int, high: int) -> Samples:
    """The samples of rays low .. high - 1, as a packing of their own."""
    first, count = samples.first[low:high], samples.count[low:high]
    begin, end = int(first[0]), int(first[-1] + count[-1])
    return Samples(
        samples.t_start[begin:end], samples.t_end[begin:end], samples.ray_id[begin:end] - low, first - begin, count
    )
