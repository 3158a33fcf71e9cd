"""`nerfacc.cameras`: lens distortion of OpenCV's models, and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.toolkit import lenses


@torch.no_grad()
def opencv_lens_undistortion(uv: Tensor, params: Tensor, eps: float = 1e-6, iters: int = 10) -> Tensor:
    """Undistort points (..., 2) on the image plane at distance 1. Not differentiable.

    params: (..., N) or (N) with N = 0, 1, 2, 4 or 8 coefficients k1 k2 p1 p2 k3 k4 k5 k6. With N = 0 the points are
    returned unchanged. eps: smallest determinant of a Newton step. iters: Newton steps.
    """
    return _opencv_lens_undistortion(uv, params, eps, iters)


@torch.no_grad()
def opencv_lens_undistortion_fisheye(uv: Tensor, params: Tensor, eps: float = 1e-6, iters: int = 10) -> Tensor:
    """Undistort points (..., 2) of a fisheye lens. Not differentiable.

    params: (..., 4) or (4), k1 k2 k3 k4. iters: Newton steps. eps is ignored: there is no early exit.
    """
    return lenses.undistort_fisheye(uv, params, iters)


def _opencv_lens_distortion(uv: Tensor, params: Tensor) -> Tensor:
    """Distort points (..., 2); params (..., 8): k1 k2 p1 p2 k3 k4 k5 k6. Differentiable."""
    return lenses.distort(uv, params)


def _opencv_lens_distortion_fisheye(uv: Tensor, params: Tensor, eps: float = 1e-10) -> Tensor:
    """Distort points (..., 2) with a fisheye lens; params (..., 4). Differentiable. `eps` is ignored."""
    return lenses.distort_fisheye(uv, params)


def _opencv_lens_undistortion(uv: Tensor, params: Tensor, eps: float = 1e-6, iters: int = 10) -> Tensor:
    """As `opencv_lens_undistortion`, but differentiable."""
    if not params.ndim or params.shape[-1] not in (0, 1, 2, 4, 8):
        raise ConfigError(f"`params` must have 0, 1, 2, 4 or 8 coefficients, got shape {list(params.shape)}.")
    return uv if params.shape[-1] == 0 else lenses.undistort(uv, params, iters, eps)
