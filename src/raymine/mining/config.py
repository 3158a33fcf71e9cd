"""The configuration of mining."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from raymine.errors import ConfigError, require_finite

MiningPolicy = Literal["none", "prune", "hard"]
DrawMethod = Literal["systematic", "poisson", "multinomial", "topk"]
Reweight = Literal["unbiased", "none"]


@dataclass(frozen=True)
class HardConfig:
    """How hard samples are drawn; symbols as in `raymine.mining.draw`.

    draw: `poisson` draws each sample independently with probability min(1, b p). `systematic` draws with the same
        probabilities, spread evenly along the batch by one random number. `multinomial` draws b samples without
        replacement, as published. `topk` takes the b largest gradients.
    reweight: `unbiased` divides the gradient of a chosen sample by its inclusion probability; `none`, as published,
        does not.
    rate: of the running average of tau; None uses 1 / number of training images, as the paper says.
    low, high: b is kept within low B .. high B.
    """

    draw: DrawMethod = "systematic"
    reweight: Reweight = "unbiased"
    rate: float | None = None
    low: float = 0.05
    high: float = 0.5

    def __post_init__(self) -> None:
        require_finite(self)
        for name, value, known in (
            ("draw", self.draw, get_args(DrawMethod)),
            ("reweight", self.reweight, get_args(Reweight)),
        ):
            if value not in known:
                raise ConfigError(f"mining `{name}` must be one of {', '.join(known)}; got {value!r}.")
        if self.draw == "topk" and self.reweight == "unbiased":
            raise ConfigError(
                "mining with draw `topk` cannot be unbiased: what is not among the largest is never drawn.",
                hint="Use reweight `none`, or draw `poisson`.",
            )
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ConfigError(f"mining `rate` must be in 0 .. 1 and above 0, got {self.rate}.")
        if not 0 < self.low <= self.high <= 1:
            raise ConfigError(f"mining needs 0 < low <= high <= 1, got {self.low} and {self.high}.")


PUBLISHED = HardConfig(draw="multinomial", reweight="none")
"""The algorithm as published. The authors' code uses a rate of 0.01 instead of 1 / images."""


@dataclass(frozen=True)
class MiningConfig:
    """policy: `none` trains on every marched sample, `prune` on the visible ones, `hard` on those with large gradients.

    stop: the transmittance below which a sample is hidden. faint: `prune` and `hard` also leave out samples whose own
    opacity is below this. hard: settings of the policy `hard`.
    """

    policy: MiningPolicy = "hard"
    stop: float = 1e-4
    faint: float = 0.0
    hard: HardConfig = dataclasses.field(default_factory=HardConfig)

    def __post_init__(self) -> None:
        require_finite(self)
        if self.policy not in get_args(MiningPolicy):
            raise ConfigError(f"mining policy must be one of {', '.join(get_args(MiningPolicy))}; got {self.policy!r}.")
        if not (0 <= self.stop < 1 and 0 <= self.faint < 1):
            raise ConfigError(f"mining needs 0 <= stop < 1 and 0 <= faint < 1, got {self.stop} and {self.faint}.")
