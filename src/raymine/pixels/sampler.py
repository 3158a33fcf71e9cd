"""Draws pixels by a policy, and remembers what it must to do so.

Symbols, for a pixel in cell c:

    u_c       how likely an even draw is to fall into the cell (`Cells.share`)
    s_c       the score of the cell: its error or its edges divided by their mean over even draws, or the mean of both;
              1 where there is no error, or no edge, anywhere
    q_c       s_c u_c, how likely the cell is when drawn by its score
    r         the coverage: the share of the rays that is drawn evenly; others by cell, then evenly within it
    w         u_c / (r u_c + (1 - r) q_c), which is at most 1 / r: with it, the expected loss is that of even draws

Of n rays r n are drawn evenly, rounded up or down at random, so that on average it is r n whatever n is.

Draws are a function of (seed, step, state). The state is the error map and the running sum of q, which follows the map
at steps that are multiples of `refresh`; so a restored sampler goes on exactly, whatever the step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import ImageSource
from raymine.errors import ConfigError
from raymine.kernels.philox.op import Stream, words
from raymine.pixels.config import PixelConfig
from raymine.pixels.score import CellScores
from raymine.pixels.uniform import Pixels, draw_uniform


class DrawnPixels(NamedTuple):
    """pixels [R] on the CPU; weight [R] float32, which multiplies a ray's loss, or None where all are 1."""

    pixels: Pixels
    weight: Tensor | None


class _Pending(NamedTuple):
    """Errors [R] on their way from a device; they are there once `ready` has happened."""

    pixels: Pixels
    error: Tensor
    ready: torch.cuda.Event


class PixelSampler:
    """Which pixels are seen, by the policy of the config. It lives on the CPU; `observe` takes errors of any device.

    score: the cells and their table; None where all pixels are drawn evenly.
    """

    def __init__(self, config: PixelConfig, images: ImageSource) -> None:
        """A policy that follows edges reads every image here, one at a time."""
        self.config = config
        self.sizes = torch.from_numpy(images.sizes)
        self.score = None if config.policy == "uniform" else CellScores(config, images)
        self._pending: _Pending | None = None

    @property
    def learns(self) -> bool:
        """Whether `observe` has any effect."""
        return self.config.follows_error

    def tensors(self) -> dict[str, Tensor]:
        """Everything to save, by name; copying saved values back into these restores the sampler."""
        self._settle()
        if self.score is None or self.score.error is None:
            return {}
        return {"error": self.score.error.values, "table": self.score.table}

    def draw(self, n: int, seed: int, step: int) -> DrawnPixels:
        """n pixels for step `step`: first those drawn evenly, then those drawn by cell, in the order of the cells."""
        if self.score is None:
            return DrawnPixels(draw_uniform(self.sizes, n, seed, step), None)
        self._settle()
        if self.learns and step % self.config.refresh == 0:
            self.score.refresh()
        wanted = n * self.config.coverage
        word = words(seed, step, Stream.CELL, 1 + 3 * (n - math.floor(wanted))).numpy()
        evenly = math.floor(wanted + word[0] * 2.0**-32)
        even = draw_uniform(self.sizes, evenly, seed, step)
        number, down, across = word[1:].reshape(3, -1)[:, : n - evenly]
        # One number from each of as many equal parts of 0 .. 1 as there are rays: on the whole as likely as independent
        # ones, but spread more evenly, and quicker to look up, being sorted.
        cell = self.score.find((np.arange(n - evenly) + number * 2.0**-32) / (n - evenly))
        hard = self.score.cells.place(cell, down, across)
        pixels = Pixels(*(torch.cat((a, torch.from_numpy(b))) for a, b in zip(even, hard, strict=True)))
        if not self.config.reweight:
            return DrawnPixels(pixels, None)
        cells = np.concatenate((self.score.cells.of(*(part.numpy() for part in even)), cell))
        return DrawnPixels(pixels, torch.from_numpy(self.score.weight(cells, self.config.coverage)).float())

    def observe(self, pixels: Pixels, error: Tensor) -> None:
        """Remember the squared errors [R] of the rays through `pixels` [R]; no effect unless the policy follows errors.

        Give masked pixels an error of 0, so that none is drawn for what cannot be learnt from it. Errors that are not
        finite are ignored. Errors on a CUDA device are fetched without waiting for it: what wait there is comes with
        the next call of this sampler, and there is none where the step ends in a wait of its own.
        """
        if not self.learns:
            return
        if error.ndim != 1 or len(error) != len(pixels.image):
            raise ConfigError(
                f"`error` must have shape [{len(pixels.image)}], one value for each pixel; got {list(error.shape)}."
            )
        self._settle()
        error = error.detach().float()
        if error.device.type == "cpu":
            self._remember(pixels, error)
            return
        # The copy lies in pinned memory, which must not be read before the event.
        fetched, ready = error.to("cpu", non_blocking=True), torch.cuda.Event()
        ready.record(torch.cuda.current_stream(error.device))
        self._pending = _Pending(pixels, fetched, ready)

    def heat(self, index: int) -> Tensor:
        """[H, W] float32: the score of each pixel of image `index` as it is now; over even draws its mean is 1."""
        if self.score is None:
            return torch.ones(self.sizes[index].tolist())
        self._settle()
        return self.score.heat(index)

    def _settle(self) -> None:
        """Take in the errors that were on their way."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.ready.synchronize()
            self._remember(pending.pixels, pending.error)

    def _remember(self, pixels: Pixels, error: Tensor) -> None:
        assert self.score is not None
        assert self.score.error is not None
        cell = self.score.cells.of(*(part.numpy() for part in pixels))
        self.score.error.observe(cell, error.numpy())
