"""The quick evaluation during training: PSNR on a few thousand pixels of some views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from raymine.contracts import Renderer
from raymine.kernels.threads import mean
from raymine.step import TrainData

# Rays of one quick evaluation over all views: about a second on two cores, for images of any size.
QUICK_RAYS = 1 << 15

EvalSplit = Literal["test", "held-out"]
"""The views of a quick evaluation. `test`: of the test split, or of the validation split if there is no test split;
these never select a checkpoint. `held-out`: taken out of the training split; these select the best checkpoint."""


@dataclass(frozen=True)
class QuickScore:
    """The result of a quick evaluation: mean PSNR (dB) over `views` views; NaN if every pixel is masked."""

    psnr: float
    views: int
    split: EvalSplit


def quick_psnr(renderer: Renderer, views: TrainData, background: tuple[float, float, float]) -> float:
    """The mean over the views of the PSNR (dB) on a regular grid of pixels; NaN if every pixel is masked.

    The grid depends on the image sizes alone, so a repeated run evaluates the same pixels. As in a full evaluation,
    truth and prediction are composited over `background`, and predictions are clamped to 0..1.
    """
    budget = max(1, QUICK_RAYS // max(1, len(views.rig)))
    scores = [_psnr_of(renderer, views, index, budget, background) for index in range(len(views.rig))]
    known = [score for score in scores if not math.isnan(score)]
    return sum(known) / len(known) if known else math.nan


def _psnr_of(
    renderer: Renderer, views: TrainData, index: int, budget: int, background: tuple[float, float, float]
) -> float:
    height, width = (int(v) for v in views.images.sizes[index])
    stride = max(1, math.ceil(math.sqrt(height * width / budget)))
    # The grid starts half a stride from the border, so that it is centred.
    rows, columns = (torch.arange((stride - 1) // 2, size, stride) for size in (height, width))
    y, x = (axis.reshape(-1) for axis in torch.meshgrid(rows, columns, indexing="ij"))
    image = torch.full_like(x, index)
    rgba, weight = views.images.gather(image, y, x)
    backdrop = torch.tensor(background)
    truth = torch.lerp(backdrop.expand(len(x), 3), rgba[:, :3], rgba[:, 3:])
    device = views.rig.device
    rays = views.rig.rays_for_pixels(image.to(device), x.to(device), y.to(device))
    colour = renderer.render(rays, backdrop.to(device)).colour.detach().cpu().float().nan_to_num(nan=0.0).clamp(0, 1)
    kept = weight > 0
    if not bool(kept.any()):
        return math.nan
    error = float(mean((colour - truth)[kept] ** 2))
    return -10.0 * math.log10(max(error, 1e-10))
