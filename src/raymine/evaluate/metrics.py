"""Image metrics as published work reports them: PSNR and SSIM of colour images in 0..1.

Both take images [H, W, C] and an optional mask [H, W] (True where a pixel counts), work in float64 and return a plain
float. Symbols: mse = mean squared error; mu, s2, s12 = Gaussian-weighted means, variances and covariance of a window;

    PSNR = -10 log10(mse)
    SSIM = mean of (2 mu_a mu_b + C1)(2 s12 + C2) / ((mu_a^2 + mu_b^2 + C1)(s2_a + s2_b + C2))
    C1 = 0.01^2, C2 = 0.03^2
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WINDOW = 11
SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2


def psnr(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Peak signal-to-noise ratio in dB for a peak of 1, over all counted pixels and channels together.

    Equal images give infinity; a mask that counts no pixel gives NaN.
    """
    _check(a, b, mask)
    squared = (a.double() - b.double()).square()
    if mask is not None:
        squared = squared[mask.bool()]
    if squared.numel() == 0:
        return math.nan
    mse = float(squared.mean())
    return math.inf if mse == 0.0 else -10.0 * math.log10(mse)


def ssim(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Structural similarity: Gaussian window of 11 and sigma 1.5, population covariance, mean over the valid region.

    Only windows that lie wholly inside the image count, and with a mask only those without a masked pixel; channels
    are averaged. An image smaller than 11 pixels on a side uses the largest odd window that fits, with the same
    sigma. NaN when no window counts.
    """
    _check(a, b, mask)
    height, width = a.shape[:2]
    size = min(WINDOW, height, width)
    size -= 1 - size % 2
    # [C, H, W] each; the five windowed means are computed as one stack.
    x, y = a.double().movedim(-1, 0), b.double().movedim(-1, 0)
    stack = torch.stack([x, y, x * x, y * y, x * y])
    mu_x, mu_y, xx, yy, xy = _windowed_mean(stack, _gaussian(size, a.device)).unbind(0)
    variance_x, variance_y, covariance = xx - mu_x * mu_x, yy - mu_y * mu_y, xy - mu_x * mu_y
    luminance = (2.0 * mu_x * mu_y + _C1) / (mu_x * mu_x + mu_y * mu_y + _C1)
    structure = (2.0 * covariance + _C2) / (variance_x + variance_y + _C2)
    values = luminance * structure  # [C, H - size + 1, W - size + 1]
    if mask is None:
        return float(values.mean())
    whole = _windows_without_hole(mask, size)
    return float(values[:, whole].mean()) if bool(whole.any()) else math.nan


def _gaussian(size: int, device: torch.device) -> Tensor:
    """[size] float64 weights that sum to 1."""
    offset = torch.arange(size, dtype=torch.float64, device=device) - (size - 1) / 2
    weights = torch.exp(-0.5 * (offset / SIGMA).square())
    return weights / weights.sum()


def _windowed_mean(images: Tensor, weights: Tensor) -> Tensor:
    """Separable weighted mean over every whole window: [..., H, W] -> [..., H - k + 1, W - k + 1].

    Shifted sums: float64 convolutions have no fast path on a CPU, and 2 k scaled additions beat them several times.
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
    """[H, W] mask -> [H - size + 1, W - size + 1] True where the whole window counts."""
    holes = (~mask.bool()).float()[None, None]
    return torch.nn.functional.max_pool2d(holes, size, stride=1)[0, 0] == 0


def _check(a: Tensor, b: Tensor, mask: Tensor | None) -> None:
    if a.ndim != 3 or a.shape != b.shape or a.numel() == 0:
        raise ValueError(
            f"`a` and `b` must have one and the same shape [H, W, C], got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    if mask is not None and mask.shape != a.shape[:2]:
        raise ValueError(f"`mask` must have shape {tuple(a.shape[:2])}, got {tuple(mask.shape)}.")
