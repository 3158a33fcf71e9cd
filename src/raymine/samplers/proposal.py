"""Sampling with proposal networks, for any field (mip-NeRF 360): small density networks find where rays meet something.

1. `samples[0]` intervals are spread evenly on the scale s of a ray (`toolkit.spans.RaySpan`): linear in distance
   between the intersections with the box, or in an unbounded scene linear in disparity, out to `far`.
2. The first network gives them weights; `samples[1]` intervals have equal mass under these weights, and so on. The last
   network places the `final` intervals, at which the field itself is evaluated (`toolkit.proposal.propose`).
3. In training, the rounds keep the graph of their weights, at the steps at which the networks are trained.
   `losses.InterlevelLoss` trains them to bound the weights of the field from above.

The transmittance that is left at the end of a ray counts for no interval: the background is not an object to look for.
Annealing and the steps at which networks are trained are functions of the step, so there is no state but the networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from raymine.contracts import (
    Bounds,
    DensityConfig,
    DensityField,
    Draws,
    EstimatesMemory,
    Field,
    Group,
    Memory,
    Rays,
    Round,
    Rounds,
    activations_of,
)
from raymine.errors import ConfigError, require_finite
from raymine.kernels.philox.op import Stream
from raymine.samplers.intervals import Intervals, Limits, in_pieces, limits, midpoints, packed
from raymine.toolkit.proposal import DensityFn, Level, anneal_exponent, propose
from raymine.toolkit.spans import RaySpan

Spacing = Literal["auto", "uniform", "lindisp"]


@dataclass(frozen=True)
class ProposalConfig:
    """Rounds of proposal networks, and how they are trained.

    networks: the density network of each round. samples: its number of intervals per ray. final: the number of
        intervals at which the field is evaluated.
    spacing: of the scale s, `uniform` in distance or `lindisp`, linear in disparity. `auto` is `lindisp` in an
        unbounded scene and `uniform` in a bounded one.
    far: where rays end in an unbounded scene, in world units, if they do not reach farther by themselves.
    anneal_steps, anneal_slope: during the first `anneal_steps` steps of training, weights are raised to an exponent
        that grows from 0 to 1 (`toolkit.proposal.anneal_exponent`). 0 steps: the exponent is 1 from the start.
    every, every_step_until: the networks are trained at each step before `every_step_until`, then at every `every`-th.
    """

    networks: tuple[DensityConfig, ...]
    samples: tuple[int, ...] = (256, 96)
    final: int = 48
    spacing: Spacing = "auto"
    far: float = 1e3
    anneal_steps: int = 1000
    anneal_slope: float = 10.0
    every: int = 5
    every_step_until: int = 1000

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.networks or len(self.networks) != len(self.samples):
            raise ConfigError(
                "`networks` and `samples` must have one entry for each round, and at least one; "
                f"got {len(self.networks)} and {len(self.samples)}."
            )
        if not all(1 <= n <= 4096 for n in (*self.samples, self.final)):
            raise ConfigError(
                f"`samples` and `final` must be in 1 .. 4096 for each ray, got {list(self.samples)} and {self.final}."
            )
        if self.spacing not in get_args(Spacing):
            raise ConfigError(f"`spacing` must be one of {', '.join(get_args(Spacing))}; got {self.spacing!r}.")
        if not self.far > 0:
            raise ConfigError(f"`far` must be above 0, got {self.far}.")
        if self.anneal_steps < 0 or not self.anneal_slope > 0:
            raise ConfigError(
                "annealing needs anneal_steps >= 0 and anneal_slope > 0; "
                f"got {self.anneal_steps} and {self.anneal_slope}."
            )
        if self.every < 1 or self.every_step_until < 0:
            raise ConfigError(
                "training of proposals needs every >= 1 and every_step_until >= 0; "
                f"got {self.every} and {self.every_step_until}."
            )

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> ProposalSampler:
        """See `contracts.SamplerConfig`."""
        return ProposalSampler(self, bounds, seed, device)

    def memory(self, bounds: Bounds) -> Memory:
        """What the networks say of themselves. Each evaluates `samples` points for every `final` samples of a step."""
        fixed = per_sample = 0
        for network, n in zip(self.networks, self.samples, strict=True):
            own = network.memory(bounds) if isinstance(network, EstimatesMemory) else Memory()
            fixed, per_sample = fixed + own.fixed, per_sample + math.ceil(own.per_sample * n / self.final)
        return Memory(fixed, per_sample)

    def trained_at(self, step: int) -> bool:
        """Whether the networks are trained at training step `step`."""
        return step < self.every_step_until or (step - self.every_step_until) % self.every == 0

    def exponent_at(self, step: int) -> float:
        """The exponent of the weights at training step `step`."""
        return anneal_exponent(step, self.anneal_steps, self.anneal_slope) if self.anneal_steps else 1.0


class ProposalSampler(nn.Module):
    """See the module (`contracts.Sampler`). Its only state is `networks`."""

    box: Tensor

    def __init__(self, config: ProposalConfig, bounds: Bounds, seed: int, device: torch.device) -> None:
        super().__init__()
        self.config, self.bounds = config, bounds
        # Other seeds than the field's, which may be a network of the same shape.
        built = (own.build(bounds, seed ^ ((i + 1) << 32), device) for i, own in enumerate(config.networks))
        self.networks = nn.ModuleList(cast("nn.Module", network) for network in built)
        self.register_buffer("box", torch.tensor((*bounds.low, *bounds.high), device=device), persistent=False)

    @property
    def spacing(self) -> Literal["uniform", "lindisp"]:
        """The spacing of the scale s, with `auto` resolved."""
        if self.config.spacing != "auto":
            return self.config.spacing
        return "lindisp" if self.bounds.unbounded else "uniform"

    def groups(self) -> list[Group]:
        """The groups of the networks, or all parameters of one that has none."""
        found = []
        for i, network in enumerate(self.networks):
            own = getattr(network, "groups", None)
            groups = cast("list[Group]", own()) if own else [Group("network", dict(network.named_parameters()))]
            for group in groups:
                names = {f"networks.{i}.{name}": value for name, value in group.parameters.items()}
                found.append(Group(f"proposal {group.role}", names, group.rate, group.decay, group.sparse))
        return found

    def sample(self, rays: Rays, field: Field, draws: Draws | None = None) -> Rounds:
        """`final` intervals of every ray that meets the scene, and the rounds at steps that train the networks.

        With `draws` the intervals of every round are shifted at random. The field is not evaluated.
        """
        config, ends = self.config, self._ends(rays)
        hit = ends.hit()
        span = RaySpan(ends.near[hit], ends.far[hit], spacing=self.spacing)
        trained = draws is not None and config.trained_at(draws.step)
        stratified: bool | Tensor = False
        if draws is not None:
            stratified = draws.rows_of_rays(Stream.ROUND, len(config.samples) + 1, len(rays))[:, hit]
        networks = [self._density_of(network, rays, hit, graph=trained) for network in self.networks]
        found = propose(
            list(zip(networks, config.samples, strict=True)),
            config.final,
            span,
            stratified=stratified,
            requires_grad=trained,
            exponent=1.0 if draws is None else config.exponent_at(draws.step),
            opaque_end=False,
        )
        scale = RaySpan(*ends, spacing=self.spacing)

        def round_of(level: Level) -> Round:
            samples = packed(Intervals(span.distances(level.edges), hit), len(rays))
            return Round(samples, level.cdfs.diff(dim=1).flatten(), scale=scale)

        earlier = tuple(round_of(level) for level in found.levels) if trained else ()
        return Rounds(packed(Intervals(span.distances(found.edges), hit), len(rays)), earlier)

    def _ends(self, rays: Rays) -> Limits:
        """Where rays begin and end: in the box of a bounded scene, or at `far`."""
        if not self.bounds.unbounded:
            return limits(rays, self.box)
        return Limits(rays.near, rays.far.clamp_min(self.config.far))

    @staticmethod
    def _density_of(network: nn.Module, rays: Rays, hit: Tensor, *, graph: bool) -> DensityFn:
        """The density of the intervals of the rays `hit` [h], by a network. Without a graph it is asked in pieces."""
        own = cast("DensityField", network)
        activate: Callable[[Tensor], Tensor] = activations_of(own).density

        def density(t_starts: Tensor, t_ends: Tensor) -> Tensor:
            query = midpoints(rays, Intervals(torch.cat((t_starts, t_ends[:, -1:]), 1), hit))
            if graph:
                raw = own.density(query.positions, query.time)
            else:
                pieces = [own.density(positions, time) for positions, time in in_pieces(query)]
                raw = torch.cat(pieces) if pieces else t_starts.new_zeros(0)
            return activate(raw).view_as(t_starts)

        return density
