"""Samples the pixels of a training step, by the policy of the config.

Symbols, for a pixel in cell c:

    u_c       probability of the cell in a uniform draw (`Cells.share`)
    s_c       score of the cell: its error or its edges, divided by their mean over uniform draws, or the mean of both
              scores; 1 if there is no error, or no edge, anywhere
    q_c       s_c u_c, probability of the cell in a draw by score
    r         coverage: the share of the rays that is drawn uniformly; the others draw a cell, then a pixel of the cell
    w         u_c / (r u_c + (1 - r) q_c) <= 1 / r: with this weight the expected loss is that of uniform draws

Of n rays r n are drawn uniformly. This number is rounded up or down at random, so that its mean is r n for every n.

Draws are a function of (seed, step, state). The state is the error map and the running sum of q. The sum is recomputed
from the map at steps that are multiples of `refresh`, so a restored sampler draws exactly what it would have drawn.
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
    """pixels [R] on the CPU; weight [R] float32, the factor on the loss of each ray, or None if all are 1."""

    pixels: Pixels
    weight: Tensor | None


class _Pending(NamedTuple):
    """Errors [R] that are being copied from a device; the copy is complete after the event `ready`."""

    pixels: Pixels
    error: Tensor
    ready: torch.cuda.Event


class PixelSampler:
    """Draws pixels by the policy of the config. It runs on the CPU; `observe` takes errors from any device.

    score: the scores of the cells; None for the policy `uniform`.
    """

    def __init__(self, config: PixelConfig, images: ImageSource) -> None:
        """A policy with edges reads every image here, one at a time."""
        self.config = config
        self.sizes = torch.from_numpy(images.sizes)
        self.score = None if config.policy == "uniform" else CellScores(config, images)
        self._pending: _Pending | None = None

    @property
    def learns(self) -> bool:
        """Whether the policy uses the errors that `observe` takes."""
        return self.config.follows_error

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name. Copying saved values into them restores the sampler."""
        self._settle()
        if self.score is None or self.score.error is None:
            return {}
        return {"error": self.score.error.values, "table": self.score.table}

    def draw(self, n: int, seed: int, step: int, part: tuple[int, int] | None = None) -> DrawnPixels:
        """Draw n pixels for step `step`: first the uniform draws, then the draws by score, in cell order.

        part: (start, stop), to get these of the n pixels only. A sampler that learns gives all of them nevertheless,
        because it observes all of them.
        """
        if self.score is None:
            return DrawnPixels(draw_uniform(self.sizes, n, seed, step, part), None)
        drawn = self._draw_scored(n, seed, step)
        if part is None or self.learns:
            return drawn
        start, stop = part
        weight = None if drawn.weight is None else drawn.weight[start:stop]
        return DrawnPixels(drawn.pixels.part(start, stop), weight)

    def _draw_scored(self, n: int, seed: int, step: int) -> DrawnPixels:
        assert self.score is not None
        self._settle()
        if self.learns and step % self.config.refresh == 0:
            self.score.refresh()
        wanted = n * self.config.coverage
        word = words(seed, step, Stream.CELL, 1 + 3 * (n - math.floor(wanted))).numpy()
        evenly = math.floor(wanted + word[0] * 2.0**-32)
        even = draw_uniform(self.sizes, evenly, seed, step)
        number, down, across = word[1:].reshape(3, -1)[:, : n - evenly]
        # Stratified: one number from each of equally many intervals of 0 .. 1. The expectation is that of independent
        # numbers, the spread is more even, and sorted numbers are quicker to look up.
        cell = self.score.find((np.arange(n - evenly) + number * 2.0**-32) / (n - evenly))
        hard = self.score.cells.place(cell, down, across)
        pixels = Pixels(*(torch.cat((a, torch.from_numpy(b))) for a, b in zip(even, hard, strict=True)))
        if not self.config.reweight:
            return DrawnPixels(pixels, None)
        cells = np.concatenate((self.score.cells.of(*(part.numpy() for part in even)), cell))
        return DrawnPixels(pixels, torch.from_numpy(self.score.weight(cells, self.config.coverage)).float())

    def observe(self, pixels: Pixels, error: Tensor) -> None:
        """Add the squared errors [R] of the rays through `pixels` [R] to the error map, if the policy uses errors.

        Give masked pixels an error of 0, so that they do not attract rays. Non-finite errors are ignored. Errors on a
        CUDA device are copied asynchronously. The next call of this sampler waits for the copy, which is complete
        by then if the step itself waits for the device.
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
        # The copy goes to pinned memory, which must not be read before the event.
        fetched, ready = error.to("cpu", non_blocking=True), torch.cuda.Event()
        ready.record(torch.cuda.current_stream(error.device))
        self._pending = _Pending(pixels, fetched, ready)

    def heat(self, index: int) -> Tensor:
        """[H, W] float32: the current score of each pixel of image `index`. Its mean over uniform draws is 1."""
        if self.score is None:
            return torch.ones(self.sizes[index].tolist())
        self._settle()
        return self.score.heat(index)

    def _settle(self) -> None:
        """Wait for the errors that are being copied, and add them to the map."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.ready.synchronize()
            self._remember(pending.pixels, pending.error)

    def _remember(self, pixels: Pixels, error: Tensor) -> None:
        assert self.score is not None
        assert self.score.error is not None
        cell = self.score.cells.of(*(part.numpy() for part in pixels))
        self.score.error.observe(cell, error.numpy())
