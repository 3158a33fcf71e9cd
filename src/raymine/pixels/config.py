"""The configuration of pixel sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from raymine.errors import ConfigError, require_finite

PixelPolicy = Literal["uniform", "error", "edges", "error+edges"]


@dataclass(frozen=True)
class PixelConfig:
    """policy: `uniform`; `error`, by the past errors of rays; `edges`, by image gradients; `error+edges`, by both.

    All but `uniform` are mixtures with uniform draws; symbols as in `raymine.pixels.sampler`.

    coverage: the share of the rays that is drawn uniformly, 0.001 .. 1, so that every pixel can be drawn.
    reweight: weight the rays so that the expected loss is that of uniform draws; a weight is at most 1 / coverage.
    decay: the factor on a cell's mean squared error when one more ray of that cell is observed; the mean is over about
        1 / (1 - decay) rays.
    cells: the most cells over all images together; at least one per image.
    image_limit: the errors of one image count at most this many times the mean over all images. An image with a wrong
        pose, which is never learnt, then cannot attract all rays. None: no limit.
    refresh: the table of probabilities is recomputed from the errors at steps that are multiples of this.
    """

    policy: PixelPolicy = "uniform"
    coverage: float = 0.5
    reweight: bool = True
    decay: float = 0.9
    cells: int = 1 << 18
    refresh: int = 16
    image_limit: float | None = None

    def __post_init__(self) -> None:
        require_finite(self)
        if self.policy not in get_args(PixelPolicy):
            raise ConfigError(f"pixels policy must be one of {', '.join(get_args(PixelPolicy))}; got {self.policy!r}.")
        if not 0.001 <= self.coverage <= 1:
            raise ConfigError(
                f"pixels `coverage` must be in 0.001 .. 1, got {self.coverage}.",
                hint="Without even draws some pixels would never be seen; 0.5 is the default.",
            )
        if not 0 <= self.decay < 1:
            raise ConfigError(f"pixels `decay` must be in 0 .. 1 and below 1, got {self.decay}.")
        if self.cells < 1 or self.refresh < 1:
            raise ConfigError(f"pixels needs cells >= 1 and refresh >= 1, got {self.cells} and {self.refresh}.")

        if self.image_limit is not None and not self.image_limit >= 1:
            raise ConfigError(f"pixels `image_limit` must be at least 1 (the mean itself), got {self.image_limit}.")

    @property
    def follows_error(self) -> bool:
        """Whether the policy uses the observed errors."""
        return "error" in self.policy.split("+")

    @property
    def follows_edges(self) -> bool:
        """Whether the policy uses image gradients."""
        return "edges" in self.policy.split("+")
