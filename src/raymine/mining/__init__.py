"""Which of the marched samples a step trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from raymine.errors import ConfigError

Policy = Literal["none", "prune"]


@dataclass(frozen=True)
class MiningConfig:
    """`none` trains on every marched sample; `prune` on those a ray still sees, found by a density pass.

    stop: transmittance below which a sample is hidden. faint: own opacity below which `prune` drops a sample.
    """

    policy: Policy = "prune"
    stop: float = 1e-4
    faint: float = 0.0

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ConfigError(f"mining policy must be one of {', '.join(get_args(Policy))}; got {self.policy!r}.")
        if not (0 <= self.stop < 1 and 0 <= self.faint < 1):
            raise ConfigError(f"mining needs 0 <= stop < 1 and 0 <= faint < 1, got {self.stop} and {self.faint}.")
