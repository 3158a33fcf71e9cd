"""Training images that stay hard while the others improve: their poses are probably wrong, or something moved.

A few pixels of every training image are rendered at each quick evaluation (a look). The error of an image is the mean
squared error of these pixels without the largest twelfth, since a reflection or a thin wire makes single pixels hard.
With e_ik the error of image i at look k, and medians over all images:

    d_i = log e_iK - median_i log e_iK         how much harder the image is than the others, at the last look K
    s   = 1.4826 median_i |d_i|                their usual spread (a standard deviation, if d is normal)
    g_i = log e_i1 - log e_iK                  how much it has improved since the first look
    g   = median_i g_i                         how much the others have

An image stays hard if d_i > max(log RATIO, SPREADS s), g >= log IMPROVED, and g_i < SHARE g. The first condition alone
would name images that are hard to learn (fine texture, a rare viewpoint): these improve with the others. An image with
a wrong pose does not, because the others contradict it. At the end, other pixels of these images must
confirm the first condition.

An image is rendered as it is trained on: at its refined pose and with its exposure, where the run fits these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Renderer
from raymine.step import TrainData, TrainState

LOOK_RAYS = 1 << 11
"""Rays of a look over all images: a sixteenth of those of a quick evaluation."""
FEWEST, MOST = 8, 64
"""Pixels of an image in a look, even if `LOOK_RAYS` asks for fewer or more."""
FEWEST_IMAGES = 8
"""With fewer images there is no usual error to compare with."""
RATIO, SPREADS, IMPROVED, SHARE = 3.0, 2.5, 1.5, 0.5
"""See the module. Chosen on nine runs with and without wrong poses (docs/LOG.md)."""
_CANDIDATES = 4
"""Pixels that are read for each pixel that is used: those that show something are preferred to transparent ones."""
_CHECKED = 256
"""Pixels of an image that `stay_hard` names, to check it at the end of a run."""
_TRIM = 12
_SMALLEST = 1e-8
"""Errors below this count as this: an image of plain background has no error to take the logarithm of."""
_PLASTIC = (0.7548776662466927, 0.5698402909980532)
"""Inverse powers of the plastic number: their multiples fill a square evenly, however many are taken."""


class _Pixels(NamedTuple):
    """`each` pixels of some images.

    image, x, y [N] int64; truth [N, 3] over the background; kept [N] bool: no mask excludes the pixel.
    """

    each: int
    image: Tensor
    x: Tensor
    y: Tensor
    truth: Tensor
    kept: Tensor


class ImageErrors:
    """The errors of a model on a few pixels of every training image; the same pixels at every look.

    They are read at the first look and kept. Which ones they are depends on the images alone. state: what is trained,
    whose refined poses and exposures the images have at the moment of a look.
    """

    def __init__(self, data: TrainData, background: tuple[float, float, float], state: TrainState) -> None:
        self._data, self._state = data, state
        self._backdrop = torch.tensor(background)
        self._each = min(MOST, max(FEWEST, LOOK_RAYS // max(1, len(data.rig))))

    def look(self, renderer: Renderer) -> tuple[float, ...]:
        """The error of each image, to four digits; -1 if all of its pixels are masked."""
        return self._errors(renderer, self._pixels)

    def hard_images(self, looks: Sequence[Sequence[float]], renderer: Renderer) -> tuple[int, ...]:
        """The images that stay hard, hardest first: those of `stay_hard` that `_CHECKED` other pixels confirm.

        The largest error of many images is partly chance; that of other pixels of the same image is not. renderer: of
        the model of the last look.
        """
        suspects = stay_hard(looks)
        if not suspects:
            return ()
        pixels = self._choose(torch.tensor(suspects), _CHECKED, first=len(self._data.rig) * self._each * _CANDIDATES)
        limit = _limit(np.array(looks[-1], float))
        errors = self._errors(renderer, pixels)
        return tuple(image for image, error in zip(suspects, errors, strict=True) if error > limit)

    @cached_property
    def _pixels(self) -> _Pixels:
        return self._choose(torch.arange(len(self._data.rig)), self._each)

    def _choose(self, images: Tensor, each: int, first: int = 0) -> _Pixels:
        """`each` pixels of images [n]. first: where in the sequence of positions to begin."""
        read = each * _CANDIDATES
        image = images.repeat_interleave(read)
        number = torch.arange(first, first + len(image), dtype=torch.float64)
        sizes = self._data.sizes[image].unbind(1)
        y, x = (((number * step + 0.5) % 1 * size).long() for step, size in zip(_PLASTIC, sizes, strict=True))
        rgba, kept = self._data.images.gather(image, y, x)
        # Unmasked pixels first, of these the ones that are not transparent, else in the order of the candidates.
        rank = torch.where(kept > 0, 1 + (rgba[:, 3] > 0).long(), 0).view(-1, read)
        chosen = rank.argsort(stable=True, dim=1, descending=True)[:, :each]
        at = (chosen + torch.arange(len(images))[:, None] * read).reshape(-1)
        truth = torch.lerp(self._backdrop.expand(len(at), 3), rgba[at, :3], rgba[at, 3:])
        return _Pixels(each, image[at], x[at], y[at], truth, kept[at] > 0)

    @torch.no_grad()
    def _errors(self, renderer: Renderer, pixels: _Pixels) -> tuple[float, ...]:
        rig, poses, exposure = self._data.rig, self._state.poses, self._state.exposure
        image, x, y = (part.to(rig.device) for part in (pixels.image, pixels.x, pixels.y))
        rays, backdrop = rig.rays_for_pixels(image, x, y), self._backdrop.to(rig.device)
        seen = renderer.render(rays if poses is None else poses.refine(rays, image), backdrop)
        colour = seen.colour
        if exposure is not None:
            colour = exposure.expose(colour, seen.opacity, backdrop.expand(len(image), 3), image)
        squared = (colour.detach().cpu().float().nan_to_num(nan=0.0).clamp(0, 1) - pixels.truth).square().mean(1)
        rows = zip(squared.view(-1, pixels.each).numpy(), pixels.kept.view(-1, pixels.each).numpy(), strict=True)
        return tuple(_trimmed_mean(row[kept]) for row, kept in rows)


def _trimmed_mean(values: np.ndarray) -> float:
    """The mean of values [n] without the largest twelfth, to four digits; -1 for n = 0."""
    left = max(min(1, len(values)), len(values) - max(1, round(len(values) / _TRIM)))
    return float(f"{np.sort(values.astype(np.float64))[:left].mean():.4g}") if left else -1.0


def _limit(errors: np.ndarray) -> float:
    """The error above which an image is far harder than the others; -1 in errors [images] is none."""
    logs = np.log(np.maximum(errors[errors >= 0], _SMALLEST))
    usual = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - usual)))
    return math.exp(usual + max(math.log(RATIO), SPREADS * spread))


def stay_hard(looks: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The images that stay hard, hardest first. looks: errors [images] of at least two looks, else there are none."""
    if len(looks) < 2 or len(looks[0]) != len(looks[-1]):
        return ()
    first, last = np.array((looks[0], looks[-1]), float)
    judged = (first >= 0) & (last >= 0)
    if judged.sum() < FEWEST_IMAGES:
        return ()
    gained = np.log(np.maximum(first, _SMALLEST) / np.maximum(last, _SMALLEST))
    usual = float(np.median(gained[judged]))
    if usual < math.log(IMPROVED):
        return ()
    found = judged & (last > _limit(last[judged])) & (gained < SHARE * usual)
    return tuple(int(i) for i in np.argsort(-last, kind="stable") if found[i])
