"""Ways of mining by the name that a user types, and what each changes in a recipe's config."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from raymine.config import to_json
from raymine.errors import ConfigError, option
from raymine.files import JSON
from raymine.mining import PUBLISHED

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

KNOWN = f"Policies: {', '.join(POLICIES)}."


def policy_overrides(name: str, asked_as: str = "mining") -> Mapping[str, JSON]:
    """Fields of `TrainConfig`, by dotted name, that make `name` the way of mining; `asked_as`: the option to blame."""
    if name not in POLICIES:
        close = difflib.get_close_matches(name, POLICIES, n=1)
        meant = f" Did you mean `{close[0]}`?" if close else ""
        raise ConfigError(f"{option(asked_as)}: there is no policy `{name}`.{meant}", hint=KNOWN)
    return POLICIES[name]
