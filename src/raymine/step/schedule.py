"""Training that changes in the course of a run, by its share of the horizon: levels that fade in, images that grow.

All of it is a function of (step, horizon), so a resumed run goes on as an uninterrupted one would have done. The end of
the refinement of poses is remembered as well (`poses.PoseRefinement.ended`), since a horizon may grow afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raymine.errors import ConfigError, require_finite


def open_share(step: int, horizon: int, coarse: float, fade: float) -> float:
    """The share of a field's levels that are open in step `step` of a run of `horizon` steps.

    It grows from `coarse` to 1 over the share `fade` of the run.
    """
    done = step / (fade * horizon) if fade * horizon > 0 else 1.0
    return min(1.0, coarse + (1.0 - coarse) * done)


def end_of(share: float, horizon: int) -> int:
    """The step at which the share `share` of a run of `horizon` steps ends."""
    return math.ceil(share * horizon)


@dataclass(frozen=True)
class FadeConfig:
    """Levels of the field (of its grid, or its frequencies) fade in from coarse to fine.

    coarse: share of the levels that are open at the start. fade: share of the run over which the others fade in.
    """

    coarse: float = 0.25
    fade: float = 0.3

    def __post_init__(self) -> None:
        require_finite(self)
        if not (0 <= self.coarse <= 1 and 0 < self.fade <= 1):
            raise ConfigError(f"fade needs 0 <= coarse <= 1 and 0 < fade <= 1, got {self.coarse} and {self.fade}.")

    def open_share(self, step: int, horizon: int) -> float:
        """See `open_share` of this module."""
        return open_share(step, horizon, self.coarse, self.fade)


@dataclass(frozen=True)
class ProgressiveConfig:
    """Images are trained on at a fraction of their size first.

    factors: divisors of the image size, one after the other; the rest of the run has the full size. until: the share of
    the run at which each of them ends.
    """

    factors: tuple[int, ...] = (4, 2)
    until: tuple[float, ...] = (0.15, 0.4)

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.factors or len(self.factors) != len(self.until) or any(f < 2 for f in self.factors):
            raise ConfigError(
                "progressive needs factors of 2 and more, with one `until` for each; "
                f"got {list(self.factors)} and {list(self.until)}."
            )
        if not all(a < b for a, b in zip((0.0, *self.until), (*self.until, 1.0), strict=True)):
            raise ConfigError(f"progressive needs ascending `until` between 0 and 1, got {list(self.until)}.")

    def factor(self, share: float) -> int:
        """The divisor of the image size from this share of the run on."""
        return next((f for f, end in zip(self.factors, self.until, strict=True) if share < end), 1)
