"""The loss that trains proposal networks: their weights must bound the weights of the field from above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from raymine.contracts import LossView, RayScale, Reads, Round, Samples
from raymine.errors import ConfigError, require_finite
from raymine.kernels.threads import total
from raymine.toolkit.pack import Pack
from raymine.toolkit.proposal import blurred_interlevel_loss, interlevel_loss
from raymine.toolkit.scan import running_sum


@dataclass(frozen=True)
class InterlevelLoss:
    """`weight` times the sum over the sampler's earlier rounds of their interlevel loss, a mean over rays.

    The loss of a ray is the sum over its intervals. Gradients reach the weights of the rounds only; those of the field
    are constants here. It is 0 at steps at which the sampler gives no earlier rounds.

    blur: () for the histogram bound of mip-NeRF 360 (`toolkit.proposal.interlevel_loss`). Else, for each round, the
        half-width on the scale s of the box that the weights of the field are blurred with, as in Zip-NeRF
        (`toolkit.proposal.blurred_interlevel_loss`), which uses 0.03 and 0.003 and a weight of 0.01.
    """

    reads: ClassVar[Reads] = "rounds"
    shared: ClassVar[bool] = True

    weight: float = 1.0
    blur: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the interlevel loss needs a positive `weight`, got {self.weight}.")
        if not all(0 < width < 1 for width in self.blur):
            raise ConfigError(f"the interlevel loss needs `blur` between 0 and 1, got {list(self.blur)}.")

    def __call__(self, view: LossView) -> Tensor:
        if self.blur and len(view.rounds) > len(self.blur):
            raise ConfigError(
                f"the interlevel loss needs one `blur` for each of {len(view.rounds)} proposal rounds, got "
                f"{list(self.blur)}."
            )
        zero = view.rendered.weights.new_zeros(())
        return self.weight * sum((self._of_round(view, i) for i in range(len(view.rounds))), zero)

    def _of_round(self, view: LossView, place: int) -> Tensor:
        found = view.rounds[place]
        scale = self._scale_of(found)
        own = _histogram(view.samples, view.rendered.weights.detach(), scale)
        other = _histogram(found.samples, found.weights, scale)
        rows = (own.edges, own.cdfs, other.edges, other.cdfs)
        packs = own.pack, other.pack
        if self.blur:
            each = blurred_interlevel_loss(*rows, self.blur[place], packs=packs)
        else:
            each = interlevel_loss(*rows, packs=packs)
        return total(each) / max(view.all_rays, 1)

    def _scale_of(self, found: Round) -> RayScale | None:
        """The scale of a round. The histogram bound needs none: it does not depend on the scale."""
        if not self.blur:
            return None
        if found.scale is None:
            raise ConfigError(
                "the interlevel loss with `blur` needs a sampler whose rounds have a `scale`.",
                hint="Leave `blur` empty, or use ProposalConfig.",
            )
        return found.scale


class _Histogram(NamedTuple):
    """edges [2 B]: start and end of each sample. cdfs [2 B]: the sum of the weights up to there. pack: of both."""

    edges: Tensor
    cdfs: Tensor
    pack: Pack


def _histogram(samples: Samples, weights: Tensor, scale: RayScale | None) -> _Histogram:
    """The weights [B] of samples as a CDF. Gaps between samples, where some were left out, have no weight."""
    start, end = samples.t_start, samples.t_end
    if scale is not None:
        start, end = (scale.normalised(t, samples.ray_id) for t in (start, end))
    before = running_sum(weights, samples.pack, exclusive=True)
    edges, cdfs = torch.stack((start, end), 1), torch.stack((before, before + weights), 1)
    return _Histogram(edges.reshape(-1), cdfs.reshape(-1), Pack(samples.first * 2, samples.count * 2))
