"""Mining policies by the name that a user types, and the settings that each changes in a recipe's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from raymine.config import to_json
from raymine.errors import ConfigError, did_you_mean, option
from raymine.files import JSON
from raymine.mining import PUBLISHED
from raymine.pixels.config import PixelPolicy

_HARD: dict[str, dict[str, JSON]] = {
    "": {},
    # The published method leaves out no faint samples.
    "published": {"mining.hard": to_json(PUBLISHED), "mining.faint": 0.0},
    "poisson": {"mining.hard.draw": "poisson"},
    "systematic": {"mining.hard.draw": "systematic"},
    "multinomial": {"mining.hard.draw": "multinomial"},
    # Samples that are never drawn cannot be compensated, so this draw has no unbiased weights.
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
"""Every policy by name. `hard` uses the recipe's own settings; `hard:OPTION` changes one of them."""

KNOWN = f"Policies: {', '.join(POLICIES)}."


def policy_overrides(name: str, asked_as: str = "mining") -> Mapping[str, JSON]:
    """Fields of `TrainConfig`, by dotted name, for the policy `name`. asked_as: the option to name in errors."""
    if name not in POLICIES:
        meant = did_you_mean(name, POLICIES)
        raise ConfigError(f"{option(asked_as)}: there is no policy `{name}`.{meant}", hint=KNOWN)
    return POLICIES[name]


def pixel_overrides(name: str) -> Mapping[str, JSON]:
    """Fields of `TrainConfig`, by dotted name, that draw pixels by the policy `name`."""
    known = get_args(PixelPolicy)
    if name not in known:
        meant = did_you_mean(name, known)
        raise ConfigError(
            f"{option('pixels')}: there is no policy `{name}`.{meant}", hint=f"Policies: {', '.join(known)}."
        )
    return {"pixels.policy": name}


def fitting_overrides(*, poses: bool, exposure: bool) -> dict[str, JSON]:
    """Fields of `TrainConfig` that refine poses and fit exposures, with default settings."""
    return {name: {} for name, wanted in (("poses", poses), ("exposure", exposure)) if wanted}
