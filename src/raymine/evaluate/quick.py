"""The quick evaluation during training: PSNR on a few thousand pixels of some views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Rays, Renderer, Scene
from raymine.files import JSON
from raymine.kernels.threads import mean
from raymine.step import TrainData

from .protocol import digest, protocol_of

# Rays of one quick evaluation over all views: about a second on two cores, for images of any size.
QUICK_RAYS = 1 << 15
# As `ImageSource.gather` scales bytes, so that both give the same bits.
_SCALE = float(np.float32(1 / 255))

EvalSplit = Literal["test", "held-out"]
"""The views of a quick evaluation. `test`: of the test split, or of the validation split if there is no test split;
these never select a checkpoint. `held-out`: taken out of the training split; these select the best checkpoint."""


@dataclass(frozen=True)
class QuickScore:
    """The result of a quick evaluation: mean PSNR (dB) over `views` views; NaN if every pixel is masked.

    protocol: what it was measured on, with a digest (`quick_protocol`).
    """

    psnr: float
    views: int
    split: EvalSplit
    protocol: dict[str, JSON] = field(default_factory=dict)


def quick_protocol(scene: Scene, frames: Sequence[int], split: EvalSplit) -> dict[str, JSON]:
    """What a quick evaluation of these frames is measured on: views, their size, split and background.

    Quick scores may be compared if they have the same `digest`. It differs from that of a full evaluation, which
    compares every pixel, after rounding to 8 bits.
    """
    found = protocol_of(scene, scene.frames[frames[0]].split, len(frames))
    found = replace(
        found,
        split="held-out" if split == "held-out" else found.split,
        quantisation="none",
        psnr=f"of a regular grid of pixels, {QUICK_RAYS} of all views",
        ssim="none",
        lpips="none",
    )
    shown: tuple[str, ...] = ("split", "views", "available", "width", "height", "images")
    fields = {name: getattr(found, name) for name in shown}
    return {"digest": digest(found), **fields, "background": list(found.background)}


class QuickEvaluation:
    """PSNR of a model on a regular grid of pixels of some views.

    The grid depends on the image sizes alone, so a repeated run evaluates the same pixels. Rays and true colours are
    made on the first call and kept: at most `QUICK_RAYS` of them. As in a full evaluation, truth and prediction are
    composited over `background`, and predictions are clamped to 0..1.
    """

    def __init__(self, views: TrainData, background: tuple[float, float, float]) -> None:
        self._views = views
        self._backdrop = torch.tensor(background)

    @cached_property
    def _grids(self) -> list[_Grid]:
        budget = max(1, QUICK_RAYS // max(1, len(self._views.rig)))
        return [_grid(self._views, index, budget, self._backdrop) for index in range(len(self._views.rig))]

    def psnr(self, renderer: Renderer) -> float:
        """The mean over the views of the PSNR (dB); NaN if every pixel is masked."""
        scores = [self._psnr_of(renderer, grid) for grid in self._grids if bool(grid.kept.any())]
        return sum(scores) / len(scores) if scores else math.nan

    def _psnr_of(self, renderer: Renderer, grid: _Grid) -> float:
        rendered = renderer.render(grid.rays, self._backdrop.to(self._views.rig.device)).colour
        colour = rendered.detach().cpu().float().nan_to_num(nan=0.0).clamp(0, 1)
        error = float(mean((colour - grid.truth)[grid.kept] ** 2))
        return -10.0 * math.log10(max(error, 1e-10))


@dataclass(frozen=True)
class _Grid:
    """Pixels of one view: rays, true colours [R, 3] on the CPU, and which of them no mask excludes [R]."""

    rays: Rays
    truth: Tensor
    kept: Tensor


def _grid(views: TrainData, index: int, budget: int, backdrop: Tensor) -> _Grid:
    """About `budget` pixels of a view. They are read from the whole image, which needs no kernel to be loaded."""
    height, width = (int(v) for v in views.images.sizes[index])
    stride = max(1, math.ceil(math.sqrt(height * width / budget)))
    # The grid starts half a stride from the border, so that it is centred.
    rows, columns = (torch.arange((stride - 1) // 2, size, stride) for size in (height, width))
    y, x = (axis.reshape(-1) for axis in torch.meshgrid(rows, columns, indexing="ij"))
    rgba = torch.from_numpy(views.images.image(index)[y.numpy(), x.numpy()]).float() * _SCALE
    mask = views.images.mask(index)
    kept = torch.ones(len(x), dtype=torch.bool) if mask is None else torch.from_numpy(mask[y.numpy(), x.numpy()] >= 128)
    truth = torch.lerp(backdrop.expand(len(x), 3), rgba[:, :3], rgba[:, 3:])
    device = views.rig.device
    rays = views.rig.rays_for_pixels(torch.full_like(x, index).to(device), x.to(device), y.to(device))
    return _Grid(rays, truth, kept)


def quick_psnr(renderer: Renderer, views: TrainData, background: tuple[float, float, float]) -> float:
    """One `QuickEvaluation` of a model: mean PSNR (dB) over the views; NaN if every pixel is masked."""
    return QuickEvaluation(views, background).psnr(renderer)
