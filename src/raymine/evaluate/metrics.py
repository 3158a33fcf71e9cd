"""Image metrics as published work reports them: PSNR and SSIM of colour images in 0..1. Not differentiable.

Both take images [H, W, C] and an optional mask [H, W] (True where a pixel counts), work in float64 and return a plain
float. Symbols: mse = mean squared error; mu, s2, s12 = Gaussian-weighted means, variances and covariance of a window;

    PSNR = -10 log10(mse)
    SSIM = mean of (2 mu_a mu_b + C1)(2 s12 + C2) / ((mu_a^2 + mu_b^2 + C1)(s2_a + s2_b + C2))
    C1 = 0.01^2, C2 = 0.03^2
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from raymine.kernels.threads import mean

WINDOW = 11
SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2

_BAND = (1 << 19, 1 << 26)
"""float64 values of one band, on a CPU and on CUDA, which bound the memory. On a CPU a band stays in the cache: 94 ms of
one core for 800x800, 350 for the whole image at once."""


def psnr(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Peak signal-to-noise ratio in dB, for a peak of 1, of images [H, W, C] over all unmasked pixels and channels.

    Equal images give infinity. If every pixel is masked, the result is NaN.
    """
    _check(a, b, mask)
    squared = (a.double() - b.double()).square()
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
    # [C, H - size + 1, W - size + 1]
    values = torch.cat([_ssim_of(*band) for band in _bands(a, b, size)], dim=1)
    if mask is None:
        return float(mean(values))
    whole = _windows_without_hole(mask, size)
    return float(mean(values[:, whole])) if bool(whole.any()) else math.nan


def _bands(a: Tensor, b: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows of both images [C, rows, W], so that the windows of all bands are those of the image; and the weights."""
    height, width, channels = a.shape
    rows = max(1, _BAND[a.device.type == "cuda"] // (5 * channels * width))
    weights = _gaussian(size, a.device)
    for top in range(0, height - size + 1, rows):
        span = slice(top, min(top + rows, height - size + 1) + size - 1)
        yield a[span].movedim(-1, 0), b[span].movedim(-1, 0), weights


def _ssim_of(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """SSIM [C, H - k + 1, W - k + 1] of every complete window of images [C, H, W]; weights [k] of a window's side."""
    x, y = a.double(), b.double()
    # The five windowed means are computed as one stack.
    stack = torch.stack([x, y, x * x, y * y, x * y])
    mu_x, mu_y, xx, yy, xy = _windowed_mean(stack, weights).unbind(0)
    variance_x, variance_y, covariance = xx - mu_x * mu_x, yy - mu_y * mu_y, xy - mu_x * mu_y
    luminance = (2.0 * mu_x * mu_y + _C1) / (mu_x * mu_x + mu_y * mu_y + _C1)
    structure = (2.0 * covariance + _C2) / (variance_x + variance_y + _C2)
    return luminance * structure


def _gaussian(size: int, device: torch.device) -> Tensor:
    """[size] float64 weights that sum to 1."""
    offset = torch.arange(size, dtype=torch.float64, device=device) - (size - 1) / 2
    weights = torch.exp(-0.5 * (offset / SIGMA).square())
    return weights / weights.sum()


def _windowed_mean(images: Tensor, weights: Tensor) -> Tensor:
    """Separable weighted mean over every complete window: [..., H, W] -> [..., H - k + 1, W - k + 1].

    Computed as 2 k scaled additions of shifted images. On a CPU this is several times faster than torch's float64
    convolution.
    """
    taps = weights.tolist()
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
