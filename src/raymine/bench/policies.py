"""The mining policies that a benchmark compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raymine.config import require_seconds
from raymine.errors import ConfigError, option
from raymine.files import JSON
from raymine.recipes.policies import KNOWN, policy_overrides


@dataclass(frozen=True)
class BenchPolicy:
    """A mining policy: its name as the user types it, and the fields of `TrainConfig` that it sets, by dotted name."""

    name: str
    overrides: Mapping[str, JSON]


def check_request(policies: str, seconds: float, views: int) -> None:
    """Check the arguments that all benchmarks of policies have; `ConfigError` if one is invalid."""
    require_seconds(seconds, "seconds")
    if views < 1:
        raise ConfigError(f"{option('views')} must be at least 1, got {views}.")
    parse_policies(policies)


def parse_policies(text: str) -> tuple[BenchPolicy, ...]:
    """ "none,prune,hard:topk" -> policies in that order; `ConfigError` if one is unknown or repeated."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"{option('policies')} names no policy.", hint=KNOWN)
    policies = tuple(BenchPolicy(name, policy_overrides(name, "policies")) for name in names)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{option('policies')} names `{name}` twice; a policy is trained once per seed.", hint=KNOWN
            )
    return policies
