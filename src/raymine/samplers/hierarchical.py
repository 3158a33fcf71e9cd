"""Coarse-to-fine sampling of the original NeRF: a coarse network finds where rays meet something, and most samples go
there (Mildenhall et al., 2020).

1. n_c intervals cover a ray from near to far, shifted at random in training.
2. The coarse network gives each a weight w_i (volume rendering). In training this round keeps its graph and its
   colours: `losses.CoarseColourLoss` trains the coarse network.
3. n_f points are drawn by the distribution of the weights. They and the edges of the intervals, sorted, are the edges
   of n_c + n_f intervals, on which the field itself is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from raymine.contracts import (
    Bounds,
    Draws,
    EstimatesMemory,
    Field,
    FieldConfig,
    Memory,
    Rays,
    Round,
    Rounds,
    activations_of,
)
from raymine.errors import ConfigError
from raymine.kernels.philox.op import Stream
from raymine.samplers.intervals import Intervals, in_pieces, limits, midpoints, packed
from raymine.toolkit.importance import importance_samples
from raymine.toolkit.volume import weights_from_density

_FLOOR = 1e-3
"""What every interval has of the distribution, as a share of an even one, so that nothing is never looked at."""


@dataclass(frozen=True)
class HierarchicalConfig:
    """`coarse` samples of the network `network` on each ray, and `fine` more where it finds something."""

    network: FieldConfig
    coarse: int = 64
    fine: int = 128

    def __post_init__(self) -> None:
        if not (2 <= self.coarse <= 4096 and 1 <= self.fine <= 4096):
            raise ConfigError(
                f"a ray needs 2 .. 4096 coarse and 1 .. 4096 fine samples, got {self.coarse}, {self.fine}."
            )

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> HierarchicalSampler:
        """See `contracts.SamplerConfig`."""
        return HierarchicalSampler(self, bounds, seed, device)

    def memory(self, bounds: Bounds) -> Memory:
        """What the coarse network says of itself; it sees a share of the samples of a step."""
        own = self.network.memory(bounds) if isinstance(self.network, EstimatesMemory) else Memory()
        return Memory(own.fixed, own.per_sample * self.coarse // (self.coarse + self.fine))


class HierarchicalSampler(nn.Module):
    """See the module. Its only state is the coarse network."""

    def __init__(self, config: HierarchicalConfig, bounds: Bounds, seed: int, device: torch.device) -> None:
        super().__init__()
        self.config, self.bounds = config, bounds
        # Another seed than the field's, which may be a network of the same shape.
        self.network = cast("nn.Module", config.network.build(bounds, seed ^ (1 << 32), device))
        self.register_buffer("box", torch.tensor((*bounds.low, *bounds.high), device=device), persistent=False)

    box: Tensor

    def sample(self, rays: Rays, field: Field, draws: Draws | None = None) -> Rounds:
        """`coarse + fine` intervals of every ray that meets the scene, with the coarse round in training."""
        intervals = self._coarse_edges(rays, draws)
        network = cast("Field", self.network)
        activations = activations_of(network)
        starts, ends = intervals.edges[:, :-1], intervals.edges[:, 1:]
        query = midpoints(rays, intervals)
        earlier: tuple[Round, ...] = ()
        if draws is None:
            with torch.no_grad():
                pieces = [network.density(part, time) for part, time in in_pieces(query)]
            density = activations.density(torch.cat(pieces)) if pieces else starts.new_zeros(0)
            weights = weights_from_density(starts, ends, density.view_as(starts)).weights
        else:
            output = network.forward(query)
            weights = weights_from_density(starts, ends, activations.density(output.density).view_as(starts)).weights
            colour = activations.colour(output.colour)
            earlier = (Round(packed(intervals, len(rays)), weights.flatten(), colour),)
        return Rounds(packed(self._fine_edges(intervals, weights.detach(), draws), len(rays)), earlier)

    def _coarse_edges(self, rays: Rays, draws: Draws | None) -> Intervals:
        """Evenly spread between near and far in distance, or in inverse distance where the scene has no bounds."""
        ends = limits(rays, None if self.bounds.unbounded else self.box)
        hit = ends.hit()
        near, far = ends.near[hit, None], ends.far[hit, None]
        share = torch.linspace(0.0, 1.0, self.config.coarse + 1, device=near.device).expand(len(hit), -1)
        if draws is not None:
            # Inner edges move within half a step to either side; the ends stay.
            shift = (draws.of_rays(Stream.JITTER, len(rays), self.config.coarse - 1)[hit] - 0.5) / self.config.coarse
            share = torch.cat((share[:, :1], share[:, 1:-1] + shift, share[:, -1:]), 1)
        if self.bounds.unbounded:
            return Intervals(1.0 / torch.lerp(1.0 / near, 1.0 / far, share), hit)
        return Intervals(torch.lerp(near, far, share), hit)

    @torch.no_grad()
    def _fine_edges(self, coarse: Intervals, weights: Tensor, draws: Draws | None) -> Intervals:
        """The coarse edges and points drawn by the weights [h, n], sorted."""
        mass = torch.nan_to_num(weights) + _FLOOR / weights.shape[1]
        cdf = torch.cat((torch.zeros_like(mass[:, :1]), mass.cumsum(1)), 1)
        offset: Tensor | bool = False
        if draws is not None:
            rays = int(coarse.hit[-1]) + 1 if len(coarse.hit) else 0
            offset = draws.of_rays(Stream.ROUND, rays)[coarse.hit, 0]
        points = importance_samples(coarse.edges, cdf, self.config.fine, stratified=offset).samples
        return Intervals(torch.cat((coarse.edges, points), 1).sort(1).values, coarse.hit)
