"""Render views and compare them with the images of the scene.

Protocol, as in published work: the truth is the 8-bit image divided by 255, with straight alpha composited over the
background. The prediction is the rendered float colour, clamped to 0..1 and not rounded to 8 bits. PSNR and SSIM are
computed per image and averaged over the images. Masked pixels count in neither metric.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raymine import pictures
from raymine.contracts import ImageSource, Rendered, Renderer
from raymine.files import write_json

from .metrics import psnr, ssim

if TYPE_CHECKING:
    from raymine.rays import CameraRig

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ViewScore:
    """The scores of one view: PSNR in dB, SSIM in -1..1, rendering time in seconds."""

    name: str
    psnr: float
    ssim: float
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """The scores of all views, in the order of the request. seconds: of the whole evaluation, including pictures."""

    views: tuple[ViewScore, ...]
    seconds: float

    @property
    def psnr(self) -> float:
        """Mean of the per-image PSNR in dB. Images that are completely masked do not count."""
        return _mean([view.psnr for view in self.views])

    @property
    def ssim(self) -> float:
        """Mean of the per-image SSIM. Images without a complete unmasked window do not count."""
        return _mean([view.ssim for view in self.views])

    def to_json(self) -> dict[str, object]:
        """JSON values. A score that is not finite (equal images, or nothing to compare) becomes None."""
        return {
            "psnr": _finite(self.psnr),
            "ssim": _finite(self.ssim),
            "count": len(self.views),
            "seconds": round(self.seconds, 3),
            "images": [
                {
                    "name": view.name,
                    "psnr": _finite(view.psnr),
                    "ssim": _finite(view.ssim),
                    "seconds": round(view.seconds, 4),
                }
                for view in self.views
            ],
        }


def evaluate_views(
    renderer: Renderer,
    rig: CameraRig,
    images: ImageSource,
    *,
    background: tuple[float, float, float],
    indices: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    out_dir: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate the views `indices`, which index both `rig` and `images`; None evaluates all of them.

    background: colour in 0..1 behind transparent pixels, in the truth and in the prediction. names: one name per image
    of the rig, for tables and files. out_dir: a folder for `images/<name>-{pred,true,error,depth,opacity,sheet}.png`
    and `metrics.json`. progress: called with (done, total) after each view.
    """
    started = time.perf_counter()
    chosen = list(range(len(images.sizes))) if indices is None else list(indices)
    labels = unique_names([names[i] if names is not None else f"{i:04d}" for i in chosen])
    backdrop = torch.tensor(background, dtype=torch.float32)
    views = []
    for done, (index, name) in enumerate(zip(chosen, labels, strict=True), start=1):
        truth, mask = true_image(images, index, backdrop)
        begin = time.perf_counter()
        rays = rig.rays_for_image(index)
        rendered = renderer.render(rays, backdrop.to(rays.origins.device))
        # A non-finite pixel becomes black and lowers the score. As NaN it would remove the image from the mean.
        predicted = rendered.colour.detach().cpu().float().nan_to_num(nan=0.0).clamp(0.0, 1.0).reshape(truth.shape)
        seconds = time.perf_counter() - begin
        views.append(ViewScore(name, psnr(predicted, truth, mask), ssim(predicted, truth, mask), seconds))
        if out_dir is not None:
            _write_view(out_dir / "images", views[-1], predicted.numpy(), truth.numpy(), rendered)
        if progress is not None:
            progress(done, len(chosen))
    evaluation = Evaluation(tuple(views), time.perf_counter() - started)
    if out_dir is not None:
        write_json(out_dir / "metrics.json", evaluation.to_json(), "write the metrics")
    return evaluation


def true_image(images: ImageSource, index: int, background: Tensor) -> tuple[Tensor, Tensor | None]:
    """One image [H, W, 3] float32 over `background` [3], and its mask [H, W], True where a pixel counts (None: all)."""
    height, width = (int(v) for v in images.sizes[index])
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    image = torch.full((height * width,), index, dtype=torch.int64)
    rgba, weight = images.gather(image, y.reshape(-1), x.reshape(-1))
    rgba = rgba.cpu()
    alpha = rgba[:, 3:]
    colour = rgba[:, :3] * alpha + background * (1.0 - alpha)
    kept = weight.cpu() > 0
    mask = None if bool(kept.all()) else kept.reshape(height, width)
    return colour.reshape(height, width, 3), mask


def unique_names(names: Sequence[str]) -> list[str]:
    """File-safe names, in the same order. A repeated name gets a number, so that no file overwrites another."""
    taken: set[str] = set()
    result = []
    for name in names:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "view"
        candidate, number = safe, 2
        while candidate in taken:
            candidate, number = f"{safe}-{number}", number + 1
        taken.add(candidate)
        result.append(candidate)
    return result


def _write_view(folder: Path, score: ViewScore, predicted: np.ndarray, truth: np.ndarray, rendered: Rendered) -> None:
    height, width = truth.shape[:2]
    depth = rendered.depth.detach().cpu().float().reshape(height, width).numpy()
    opacity = rendered.opacity.detach().cpu().float().reshape(height, width).numpy()
    kinds = {
        "pred": predicted,
        "true": truth,
        "error": pictures.error_picture(predicted, truth),
        "depth": pictures.depth_picture(depth, opacity),
        "opacity": pictures.opacity_picture(opacity),
    }
    labels = {"pred": f"predicted: {score.psnr:.2f} dB, SSIM {score.ssim:.3f}"}
    shown = [(labels.get(kind, kind), kinds[kind]) for kind in ("pred", "true", "error", "depth")]
    kinds["sheet"] = pictures.contact_sheet(shown)
    for kind, picture in kinds.items():
        pictures.write_png(folder / f"{score.name}-{kind}.png", picture)


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
