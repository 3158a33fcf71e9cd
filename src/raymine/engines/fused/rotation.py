"""Which parts of the images are on the device at a step, where all of them do not fit.

Every image is cut into the same number of bands of rows. A random order of all bands follows another without an end.
The device holds a window of this sequence, which moves on by a few bands every few steps. Every band stays for the same
number of steps. A ray takes a uniform band of the window, then a uniform pixel of it. So in the long run pixels are
drawn as from images that are all there: a uniform image, then a uniform pixel of it.

What the window holds at a step is a function of (seed, step), so a resumed run finds what the unbroken one would have.

Symbols: a position p is a place in the sequence. Turn t lasts `STEPS` steps, in which the window holds the positions
t * moved .. t * moved + window - 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from raymine.errors import ResourceError, option
from raymine.kernels.philox.op import Stream, words
from raymine.quantities import size

BAND = 1 << 18
"""Pixels of a band, about: 1 MB on the device. Small, so that many images have a part in the window at once."""
STEPS = 16
"""Steps between two moves of the window."""
MOST_MOVED = 16
"""Bands that a move replaces, at most. One for each step is 1 MB a step: 2 GB/s at 2,000 steps a second."""
AHEAD = 4
"""Moves whose bands are read ahead of their time: as many as the host may be ahead of the device."""


@dataclass(frozen=True)
class Bands:
    """B bands: rows top .. top + height of `image`, each [B] int64; width [B] of that image."""

    image: np.ndarray
    top: np.ndarray
    height: np.ndarray
    width: np.ndarray

    def __len__(self) -> int:
        return len(self.image)

    @property
    def largest(self) -> int:
        """Pixels of the largest band."""
        return int((self.height * self.width).max())


def cut_bands(sizes: np.ndarray, pixels: int | None = None) -> Bands:
    """Cut images of `sizes` [I, 2] (height, width) into bands, equally many from each, of about `pixels` on average.
    None: `BAND`.

    Heights within an image differ by one row at most.
    """
    each = max(1, min(round(float(sizes.prod(1).mean()) / (pixels or BAND)), int(sizes[:, 0].min())))
    edges = sizes[:, :1] * np.arange(each + 1) // each  # [I, each + 1]
    image = np.repeat(np.arange(len(sizes)), each)
    return Bands(image, edges[:, :-1].reshape(-1), np.diff(edges).reshape(-1), sizes[image, 1])


@dataclass(frozen=True)
class Rotation:
    """bands: bands in all. window: bands that rays are drawn from. moved: bands that a move replaces.

    places: bands that the device has room for: the window, and those that are read ahead.
    """

    bands: int
    window: int
    moved: int
    seed: int
    _orders: dict[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    @property
    def places(self) -> int:
        return self.window + AHEAD * self.moved

    @property
    def steps_a_round(self) -> int:
        """Steps in which every band has its turn."""
        return -(-self.bands * STEPS // self.moved)

    def positions(self, turn: int) -> np.ndarray:
        """[window] int64: the positions that the window holds."""
        return np.arange(self.window) + turn * self.moved

    def arriving(self, turn: int) -> np.ndarray:
        """[moved] int64: the positions that enter the window with this turn."""
        return self.positions(turn)[self.window - self.moved :]

    def slots(self, positions: np.ndarray) -> np.ndarray:
        """Where positions stand in the window, 0 .. window - 1. One that enters has the slot of one that leaves."""
        return positions % self.window

    def regions(self, positions: np.ndarray) -> np.ndarray:
        """Where their pixels are, 0 .. places - 1. What enters with turn t has the memory of what left at t - AHEAD."""
        return positions % self.places

    def bands_at(self, positions: np.ndarray) -> np.ndarray:
        """The bands at positions of the sequence, each in 0 .. bands - 1."""
        rounds, place = np.divmod(positions, self.bands)
        return np.array([self._order(int(which))[at] for which, at in zip(rounds, place, strict=True)], np.int64)

    def _order(self, which: int) -> np.ndarray:
        """A random order of all bands, [bands] int64."""
        if which not in self._orders:
            for old in [known for known in self._orders if abs(known - which) > 1]:
                self._orders.pop(old, None)
            self._orders[which] = np.argsort(words(self.seed, which, Stream.BAND, self.bands).numpy(), kind="stable")
        return self._orders[which]


def plan_rotation(bands: Bands, memory: int, bytes_per_pixel: int, seed: int) -> Rotation:
    """The largest window that fits into `memory` bytes. `ResourceError` if not even a few bands do."""
    each = bands.largest * bytes_per_pixel
    places = min(memory // each, len(bands))
    moved = max(1, min(MOST_MOVED, places // 32))
    window = places - AHEAD * moved
    if window < moved:
        raise ResourceError(
            f"The images need at least {size((AHEAD + 1) * each)} on the device, and have {size(memory)}.",
            hint=f"Give the run more memory ({option('gpu_memory')}), or use smaller images ({option('downscale')}).",
        )
    return Rotation(len(bands), window, moved, seed)
