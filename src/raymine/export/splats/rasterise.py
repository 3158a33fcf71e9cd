"""Draw Gaussian splats as a viewer draws them: projected to the picture (EWA), sorted by depth, blended front to back.

A splat is a Gaussian with centre m and covariance S = R diag(s)^2 R^T. A camera that maps points by x -> W x + t and
then by perspective has at m the Jacobian J, and the splat's covariance in the picture is J W S W^T J^T + 0.3 I (pixels
squared): the 0.3 is the blur that splat viewers add so that no splat falls between pixels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Camera
from raymine.kernels.harmonics.op import harmonics

from .record import Splats, rotation_of

BLUR = 0.3
"""Added to both variances in the picture, in square pixels."""

_WIDE = 1.3
"""Beyond this multiple of the field of view, a splat's Jacobian is that of the border."""


class Drawing(NamedTuple):
    """colour [H, W, 3] without a background (premultiplied), opacity [H, W]."""

    colour: Tensor
    opacity: Tensor

    def over(self, background: tuple[float, float, float] | Tensor) -> Tensor:
        """[H, W, 3] over a background colour."""
        return self.colour + (1 - self.opacity)[..., None] * torch.as_tensor(background).to(self.colour)


def rasterise(splats: Splats, camera: Camera, pose: np.ndarray | Tensor, near: float = 0.01) -> Drawing:
    """Draw splats from a pinhole camera at a pose [3, 4], camera-to-world. Differentiable in the splats. On the CPU.

    near: splats whose centre is less far along the axis of the camera are left out.
    """
    flat = project(splats, camera, torch.as_tensor(pose), near)
    colour, clear = _Draw.apply(flat, camera.height, camera.width)
    return Drawing(colour, 1 - clear)


def project(splats: Splats, camera: Camera, pose: Tensor, near: float) -> Tensor:
    """The splats that a camera sees, nearest first, as rows [n, 11] of `_kernels`. Differentiable."""
    pose = pose.to(splats.means)
    flip = torch.tensor([1.0, -1.0, -1.0]).to(pose)
    turn = flip[:, None] * pose[:, :3].T
    with torch.no_grad():
        local = (splats.means - pose[:, 3]) @ turn.T
        ahead = local[:, 2].clamp_min(near)
        # A splat ends at 3.33 times its largest scale or before.
        reach = 3.4 * splats.log_scales.amax(1).exp()
        x, y = camera.fx * local[:, 0] / ahead + camera.cx, camera.fy * local[:, 1] / ahead + camera.cy
        wide, tall = 2 + camera.fx * reach / ahead, 2 + camera.fy * reach / ahead
        seen = (local[:, 2] > near) & (x > -wide) & (x < camera.width + wide)
        seen &= (y > -tall) & (y < camera.height + tall)
        index = seen.nonzero()[:, 0]
        index = index[local[index, 2].argsort()]
    chosen = splats.rows(index)
    local = (chosen.means - pose[:, 3]) @ turn.T
    x, y, z = local.unbind(-1)
    limit_x, limit_y = (_WIDE * 0.5 * side / f for side, f in ((camera.width, camera.fx), (camera.height, camera.fy)))
    u = torch.minimum(torch.maximum(x / z, x.new_tensor(-limit_x)), x.new_tensor(limit_x))
    v = torch.minimum(torch.maximum(y / z, y.new_tensor(-limit_y)), y.new_tensor(limit_y))
    axes = (turn @ rotation_of(chosen.quaternions)) * chosen.log_scales.exp()[:, None]
    right = (camera.fx / z)[:, None] * (axes[:, 0] - u[:, None] * axes[:, 2])
    down = (camera.fy / z)[:, None] * (axes[:, 1] - v[:, None] * axes[:, 2])
    xx, xy, yy = (right * right).sum(1) + BLUR, (right * down).sum(1), (down * down).sum(1) + BLUR
    det = xx * yy - xy * xy
    opacity = chosen.logits.sigmoid()
    with torch.no_grad():
        # The box in which alpha is at least 1/255.
        sigmas = (2 * (255 * opacity).clamp_min(1.0).log()).sqrt()
        box = torch.stack((sigmas * xx.sqrt(), sigmas * yy.sqrt()), -1)
    towards = torch.nn.functional.normalize(chosen.means - pose[:, 3], dim=-1)
    colour = colour_along(chosen.harmonics, towards)
    centre = torch.stack((camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy), -1)
    return torch.cat((centre, torch.stack((yy / det, -xy / det, xx / det, opacity), -1), colour, box), -1)


def colour_along(coefficients: Tensor, directions: Tensor) -> Tensor:
    """Coefficients [n, K, 3] seen along unit directions [n, 3] -> colour [n, 3], at least 0. Differentiable."""
    basis = harmonics(directions.contiguous(), math.isqrt(coefficients.shape[1]))
    return ((basis[..., None] * coefficients).sum(1) + 0.5).clamp_min(0.0)


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        from . import _kernels

        rows = np.ascontiguousarray(flat.detach().float().numpy())
        lists, first = _kernels.band_lists(rows, height)
        colour, clear = np.zeros((height, width, 3), np.float32), np.ones((height, width), np.float32)
        last = np.full((height, width), -1, np.int64)
        _kernels.draw(rows, lists, first, colour, clear, last)
        ctx.kept = rows, lists, first, clear, last
        return torch.from_numpy(colour), torch.from_numpy(clear)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        from . import _kernels

        rows, lists, first, clear, last = ctx.kept
        by_colour, by_clear = (np.ascontiguousarray(grad.float().numpy()) for grad in grads)
        entries = _kernels.pull_back(rows, lists, first, clear, last, by_colour, by_clear)
        found = np.zeros_like(rows)
        found[:, :9] = _kernels.sum_entries(entries, lists, len(rows))
        return torch.from_numpy(found), None, None
