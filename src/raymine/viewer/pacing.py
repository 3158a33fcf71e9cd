"""How large a picture may be, and when it is its turn: speed, stages of resolution, and what it costs training.

A view is drawn in stages. While the camera moves, only the first one is drawn, small enough to follow the hand. When
the camera rests, two larger ones follow, of which the last has the resolution of the canvas.
"""

from __future__ import annotations

from dataclasses import dataclass

STAGES = 3
"""Stages of a view; a view with this stage is complete."""

MOVING, RESTING = 0.07, 0.4
"""Seconds that a picture of the first and of the second stage may take."""

_SMALLEST = 24
"""Pixels of the shorter side that a picture has at least, however slow the machine is."""


class Speed:
    """Rays per second, as measured on the latest pictures. `first` is a guess."""

    def __init__(self, first: float) -> None:
        self.rays_per_second = first

    def measured(self, rays: int, seconds: float) -> None:
        """Note how long a picture took. Tiny ones say more about their overhead than about the speed."""
        if rays >= 256 and seconds > 0:
            self.rays_per_second += 0.4 * (rays / seconds - self.rays_per_second)

    def seconds(self, rays: int) -> float:
        """The time that so many rays are expected to take."""
        return rays / max(1.0, self.rays_per_second)


def size_of_stage(
    stage: int, canvas: tuple[int, int], speed: Speed, longest: int, most_seconds: float
) -> tuple[int, int]:
    """Width and height of the picture of a stage, in the proportions of the canvas (width, height).

    longest: pixels of the longer side of the last stage. most_seconds: that any picture may take.
    """
    width, height = max(1, canvas[0]), max(1, canvas[1])
    seconds = (MOVING, RESTING, most_seconds)[min(stage, STAGES - 1)]
    allowed = speed.rays_per_second * min(seconds, most_seconds)
    factor = min(1.0, longest / max(width, height), (allowed / (width * height)) ** 0.5)
    factor = max(factor, min(1.0, _SMALLEST / min(width, height)))
    return max(1, round(width * factor)), max(1, round(height * factor))


@dataclass
class Budget:
    """The share of the time that drawing may take from training.

    Training earns credit, drawing spends it. A picture is drawn when its expected time has been earned, so that over
    any stretch of time drawing takes at most `share` of it, and `most` seconds more.
    """

    share: float
    most: float = 2.0
    credit: float = 0.0

    def earn(self, trained: float) -> None:
        """Training has taken `trained` seconds."""
        self.credit = min(self.most, self.credit + trained * self.share / (1.0 - self.share))

    def affords(self, seconds: float) -> bool:
        return self.credit >= min(seconds, self.most)

    def spend(self, seconds: float) -> None:
        self.credit -= seconds


@dataclass
class Pace:
    """How long a training step takes, and how much longer when a picture was drawn before it.

    Drawing leaves other data in the caches, and the picture is sent while training goes on.

    seconds: of a step without a picture before it; 0 before the first measurement.
    """

    seconds: float = 0.0

    def delay(self, taken: float, steps: int, *, after_picture: bool) -> float:
        """Seconds by which a picture has delayed `steps` steps that took `taken` seconds."""
        if after_picture:
            return max(0.0, taken - steps * self.seconds) if self.seconds else 0.0
        each = taken / max(1, steps)
        self.seconds += (each - self.seconds) * (0.1 if self.seconds else 1.0)
        return 0.0
