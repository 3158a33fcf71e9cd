"""What may be compared: the names of policies, and what each changes in a recipe's config."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from raymine.config import to_json
from raymine.errors import ConfigError
from raymine.files import JSON
from raymine.mining import PUBLISHED


@dataclass(frozen=True)
class Policy:
    """`name` as a user types it; `overrides` are fields of `TrainConfig` by dotted name."""

    name: str
    overrides: Mapping[str, JSON]


_HARD: dict[str, dict[str, JSON]] = {
    "": {},
    # As published there is no visibility limit on a sample's own opacity.
    "published": {"mining.hard": to_json(PUBLISHED), "mining.faint": 0.0},
    "poisson": {"mining.hard.draw": "poisson"},
    "systematic": {"mining.hard.draw": "systematic"},
    "multinomial": {"mining.hard.draw": "multinomial"},
    # What is never drawn cannot be made up for, so this draw has no unbiased weights.
    "topk": {"mining.hard.draw": "topk", "mining.hard.reweight": "none"},
    "biased": {"mining.hard.reweight": "none"},
}

POLICIES: dict[str, Mapping[str, JSON]] = {
    "none": {"mining.policy": "none"},
    "prune": {"mining.policy": "prune"},
    **{
        f"hard:{option}" if option else "hard": {"mining.policy": "hard", **overrides}
        for option, overrides in _HARD.items()
    },
}
"""Every policy by name. `hard` is the recipe's own way of mining; `hard:OPTION` changes one thing about it."""


def parse_policies(text: str) -> tuple[Policy, ...]:
    """ "none,prune,hard:topk" -> policies in that order; `ConfigError` for one that is unknown, missing or repeated."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = f"Policies: {', '.join(POLICIES)}."
    if not names:
        raise ConfigError("--policies names no policy.", hint=known)
    for name in names:
        if name not in POLICIES:
            close = difflib.get_close_matches(name, POLICIES, n=1)
            meant = f" Did you mean `{close[0]}`?" if close else ""
            raise ConfigError(f"--policies: there is no policy `{name}`.{meant}", hint=known)
        if names.count(name) > 1:
            raise ConfigError(f"--policies names `{name}` twice; a policy is trained once per seed.", hint=known)
    return tuple(Policy(name, POLICIES[name]) for name in names)
