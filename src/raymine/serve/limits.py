"""What one request may cost, and how many may wait."""

from __future__ import annotations

from dataclasses import dataclass

from raymine.errors import ConfigError, option
from raymine.export.paths import MOST_PIXELS


@dataclass(frozen=True)
class Limits:
    """pixels: of one picture. seconds: from a request to its answer. waiting: requests in the queue. body: bytes."""

    pixels: int = 1 << 22
    seconds: float = 30.0
    waiting: int = 256
    body: int = 1 << 16

    def __post_init__(self) -> None:
        if not 1 <= self.pixels <= MOST_PIXELS:
            raise ConfigError(f"{option('max_pixels')} must be between 1 and {MOST_PIXELS}, got {self.pixels}.")
        if not 0 < self.seconds <= 3600:
            raise ConfigError(f"{option('timeout')} must be above 0 and at most 3600 seconds, got {self.seconds}.")
        if not 1 <= self.waiting <= 100_000:
            raise ConfigError(f"{option('queue')} must be between 1 and 100000, got {self.waiting}.")
