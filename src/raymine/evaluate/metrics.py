"""Image metrics as published work reports them: PSNR and SSIM of colour images in 0..1. Not differentiable.

Both take images [H, W, C] and an optional mask [H, W] (True where a pixel counts), work in float64 and return a plain
float. Symbols: mse = mean squared error; mu, s2, s12 = Gaussian-weighted means, variances and covariance of a window;

    PSNR = -10 log10(mse)
    SSIM = mean of (2 mu_a mu_b + C1)(2 s12 + C2) / ((mu_a^2 + mu_b^2 + C1)(s2_a + s2_b + C2))
    C1 = 0.01^2, C2 = 0.03^2
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from raymine.kernels.threads import mean

WINDOW = 11
SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2

_PIECE = 1 << 15
"""Elements of a piece on a CPU, for which torch uses one thread. Several threads wait for each other beside others
that encode pictures: SSIM of 800x800 then takes 0.4 s of two cores, in pieces 0.12 s of one, since they stay in the
cache."""


def psnr(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Peak signal-to-noise ratio in dB, for a peak of 1, of images [H, W, C] over all unmasked pixels and channels.

    Equal images give infinity. If every pixel is masked, the result is NaN.
    """
    _check(a, b, mask)
    rows = max(1, _PIECE // (a.shape[1] * a.shape[2])) if a.device.type == "cpu" else len(a)
    pieces = zip(a.split(rows), b.split(rows), strict=True)
    squared = torch.cat([(x.double() - y.double()).square() for x, y in pieces])
    if mask is not None:
        squared = squared[mask.bool()]
    if squared.numel() == 0:
        return math.nan
    mse = float(mean(squared))
    return math.inf if mse == 0.0 else -10.0 * math.log10(mse)


def ssim(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Structural similarity, in -1..1, of images [H, W, C]: Gaussian window of 11, sigma 1.5, population covariance.

    The mean is over all channels and all windows that lie inside the image and contain no masked pixel. If a side is
    shorter than 11 pixels, the window is the largest odd one that fits, with the same sigma. NaN if there is no window.
    """
    _check(a, b, mask)
    height, width = a.shape[:2]
    size = min(WINDOW, height, width)
    size -= 1 - size % 2
    taps = _gaussian(size)
    values = torch.empty(a.shape[2], height - size + 1, width - size + 1, dtype=torch.float64, device=a.device)
    for out, images in _tiles(values.shape, size, on_cpu=a.device.type == "cpu"):
        x, y = (image.movedim(-1, 0)[images].double() for image in (a, b))
        values[out] = _ssim_of_windows(x, y, taps)
    if mask is None:
        return float(mean(values))
    whole = _windows_without_hole(mask, size)
    return float(mean(values[:, whole])) if bool(whole.any()) else math.nan


_Box = tuple[slice, slice, slice]


def _tiles(shape: tuple[int, ...], size: int, *, on_cpu: bool) -> Iterator[tuple[_Box, _Box]]:
    """Parts of the windows [C, H - size + 1, W - size + 1] of an image, and the pixels [C, H, W] that each part reads.

    On a CPU the pixels of a part are a piece of one channel, else of all channels.
    """
    channels, height, width = shape
    deep, high, wide = (1, 128, _PIECE // 128) if on_cpu else (channels, 2048, 2048)
    for c, y, x in itertools.product(
        range(0, channels, deep), range(0, height, high - size + 1), range(0, width, wide - size + 1)
    ):
        part = slice(c, c + deep)
        rows, columns = min(y + high - size + 1, height), min(x + wide - size + 1, width)
        out = slice(y, rows), slice(x, columns)
        yield (part, *out), (part, slice(y, rows + size - 1), slice(x, columns + size - 1))


def _ssim_of_windows(x: Tensor, y: Tensor, taps: Sequence[float]) -> Tensor:
    """SSIM [C, H - k + 1, W - k + 1] of the windows of float64 images [C, H, W]; taps: k weights along a side."""
    parts = (x, y, x * x, y * y, x * y)
    if x.device.type == "cpu":
        mu_x, mu_y, xx, yy, xy = (_windowed_mean(image, taps) for image in parts)
    else:
        # A fifth of the calls: beside threads that encode pictures, each call may wait for Python's lock.
        mu_x, mu_y, xx, yy, xy = _windowed_mean(torch.stack(parts), taps)
    variance_x, variance_y, covariance = xx - mu_x * mu_x, yy - mu_y * mu_y, xy - mu_x * mu_y
    luminance = (2.0 * mu_x * mu_y + _C1) / (mu_x * mu_x + mu_y * mu_y + _C1)
    structure = (2.0 * covariance + _C2) / (variance_x + variance_y + _C2)
    return luminance * structure


def _gaussian(size: int) -> list[float]:
    """`size` weights that sum to 1."""
    offset = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    weights = torch.exp(-0.5 * (offset / SIGMA).square())
    return (weights / weights.sum()).tolist()


def _windowed_mean(images: Tensor, taps: Sequence[float]) -> Tensor:
    """Separable weighted mean over every complete window: [..., H, W] -> [..., H - k + 1, W - k + 1].

    Computed as 2 k scaled additions of shifted images. On a CPU this is several times faster than torch's float64
    convolution.
    """
    for dim in (-2, -1):
        length = images.shape[dim] - len(taps) + 1
        total = images.narrow(dim, 0, length) * taps[0]
        for shift, tap in enumerate(taps[1:], start=1):
            total.add_(images.narrow(dim, shift, length), alpha=tap)
        images = total
    return images


def _windows_without_hole(mask: Tensor, size: int) -> Tensor:
    """Mask [H, W] -> [H - size + 1, W - size + 1] bool: whether a window contains no masked pixel."""
    holes = (~mask.bool()).float()[None, None]
    return torch.nn.functional.max_pool2d(holes, size, stride=1)[0, 0] == 0


def _check(a: Tensor, b: Tensor, mask: Tensor | None) -> None:
    if a.ndim != 3 or a.shape != b.shape or a.numel() == 0:
        raise ValueError(
            f"`a` and `b` must have one and the same shape [H, W, C], got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    if mask is not None and mask.shape != a.shape[:2]:
        raise ValueError(f"`mask` must have shape {tuple(a.shape[:2])}, got {tuple(mask.shape)}.")
