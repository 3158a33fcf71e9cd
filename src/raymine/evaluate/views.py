"""Render views and compare them with the images of the scene.

`protocol` defines the comparison. The truth is the image, with straight alpha composited over the background. Truth and
prediction are truncated to 8 bits before they are compared, and the pictures that are written are these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import ImageSource, Renderer
from raymine.workers import ahead

from .files import PictureChoice, evaluation_files, unique_names, views_with_pictures
from .lpips.network import Lpips, LpipsNet
from .metrics import psnr, ssim
from .protocol import Protocol, quantised

if TYPE_CHECKING:
    from raymine.rays import CameraRig

    from .fit import Fitted

Progress = Callable[[int, int], None]

_TRUTHS = 2
"""True images that are read ahead, while views are rendered."""


@dataclass(frozen=True)
class ViewScore:
    """The scores of one view: PSNR in dB, SSIM in -1..1, LPIPS by network. seconds: the time that rendering took."""

    name: str
    psnr: float
    ssim: float
    seconds: float
    lpips: Mapping[LpipsNet, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The scores of all views, in the order of the request. seconds: of the whole evaluation, including pictures.

    fitted: scores of the same views after poses or exposures were fitted to them (`fit`), where that was asked for.
    protocol: how the views were compared, where the caller has described it. step: of the checkpoint that was rendered,
    where the caller has said it.
    """

    views: tuple[ViewScore, ...]
    seconds: float
    fitted: Fitted | None = None
    protocol: Protocol | None = None
    step: int | None = None

    @property
    def psnr(self) -> float:
        """Mean of the per-image PSNR in dB. Images that are completely masked do not count."""
        return _mean([view.psnr for view in self.views])

    @property
    def ssim(self) -> float:
        """Mean of the per-image SSIM. Images without a complete unmasked window do not count."""
        return _mean([view.ssim for view in self.views])

    @property
    def lpips(self) -> dict[LpipsNet, float]:
        """Mean of the per-image LPIPS for each network, 0 for equal images. Images that are too small do not count."""
        nets = self.views[0].lpips if self.views else ()
        return {net: _mean([view.lpips[net] for view in self.views]) for net in nets}

    def to_json(self) -> dict[str, object]:
        """JSON values. A score that is not finite (equal images, or nothing to compare) becomes None."""
        return {
            "psnr": _finite(self.psnr),
            "ssim": _finite(self.ssim),
            **_lpips_json(self.lpips),
            "count": len(self.views),
            "seconds": round(self.seconds, 3),
            "images": [
                {
                    "name": view.name,
                    "psnr": _finite(view.psnr),
                    "ssim": _finite(view.ssim),
                    **_lpips_json(view.lpips),
                    "seconds": round(view.seconds, 4),
                }
                for view in self.views
            ],
            **({} if self.fitted is None else {"fitted": self.fitted.to_json()}),
            **({} if self.protocol is None else {"protocol": self.protocol.to_json()}),
            **({} if self.step is None else {"step": self.step}),
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
    pictures: PictureChoice = "all",
    progress: Progress | None = None,
    fitted: Fitted | None = None,
    lpips: Sequence[Lpips] = (),
    protocol: Protocol | None = None,
    renderers: Sequence[Renderer] | None = None,
    step: int | None = None,
) -> Evaluation:
    """Evaluate the views `indices`, which index both `rig` and `images`; None evaluates all of them.

    background: colour in 0..1 behind transparent pixels, in the truth and in the prediction. names: one name per image
    of the rig, for tables and files. out_dir: a folder for metrics.json and pictures (see `files`), which replace those
    of an earlier evaluation. pictures: of every view, of the first four or of none. progress: called with (done, total)
    after each view. fitted: scores of the same views after fitting, which become a part of the result and its file.
    lpips: networks whose distances are computed too. protocol: a description for the result and its file. renderers:
    one for each image of the rig instead of `renderer`, where images differ in their exposure. step: of the checkpoint,
    for the result and its file.
    """
    started = time.perf_counter()
    chosen = list(range(len(images.sizes))) if indices is None else list(indices)
    labels = unique_names([names[i] if names is not None else f"{i:04d}" for i in chosen])
    shown = views_with_pictures(pictures, len(chosen))
    backdrop = torch.tensor(background, dtype=torch.float32)
    views = []
    truths = ahead(lambda index: _truth(images, index, backdrop), chosen, _TRUTHS)
    with nullcontext() if out_dir is None else evaluation_files(out_dir) as files, closing(truths):
        for done, (index, name, (truth, mask)) in enumerate(zip(chosen, labels, truths, strict=True), start=1):
            begin = time.perf_counter()
            rays = rig.rays_for_image(index)
            shown_by = renderer if renderers is None else renderers[index]
            rendered = shown_by.render(rays, backdrop.to(rays.origins.device))
            # A non-finite pixel becomes black and lowers the score. As NaN it would remove the image from the mean.
            found = quantised(rendered.colour.detach().float().nan_to_num(nan=0.0)).reshape(truth.shape)
            predicted = _to_host(found)
            seconds = time.perf_counter() - begin
            # Scores are computed where the view was rendered: beside threads that encode pictures, the host is slow.
            there = truth.to(found.device), None if mask is None else mask.to(found.device)
            distances = {network.net: _distance(network, found, *there) for network in lpips}
            views.append(ViewScore(name, psnr(found, *there), ssim(found, *there), seconds, distances))
            if files is not None and done <= shown:
                depth, opacity = (
                    _to_host(values.detach().float()).reshape(truth.shape[:2]).numpy()
                    for values in (rendered.depth, rendered.opacity)
                )
                files.add(views[-1], predicted.numpy(), truth.numpy(), depth, opacity)
            if progress is not None:
                progress(done, len(chosen))
        if files is not None:
            files.finish()
        evaluation = Evaluation(tuple(views), time.perf_counter() - started, fitted, protocol, step)
        if files is not None:
            files.publish(evaluation.to_json())
    return evaluation


def _to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU. That of a CUDA tensor is in pinned memory: new pages of ordinary memory make copies slow."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def true_image(images: ImageSource, index: int, background: Tensor) -> tuple[Tensor, Tensor | None]:
    """One image [H, W, 3] float32 over `background` [3], and its mask [H, W], True where a pixel counts (None: all)."""
    # The same factor and threshold as in `ImageSource.gather`, so that both give the same bits.
    rgba = images.image(index) * np.float32(1.0 / 255.0)
    alpha = rgba[..., 3:]
    colour = rgba[..., :3] * alpha + background.numpy() * (np.float32(1.0) - alpha)
    mask = images.mask(index)
    kept = None if mask is None else mask >= 128
    return torch.from_numpy(colour), None if kept is None or kept.all() else torch.from_numpy(kept)


def _truth(images: ImageSource, index: int, background: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a view is compared with: `true_image` in 8 bits."""
    colour, mask = true_image(images, index, background)
    return quantised(colour), mask


def _distance(network: Lpips, predicted: Tensor, truth: Tensor, mask: Tensor | None) -> float:
    """LPIPS of images [H, W, 3] on one device. Masked pixels are black in both."""
    if mask is not None:
        predicted, truth = predicted * mask[..., None], truth * mask[..., None]
    return network(predicted, truth)


def _lpips_json(scores: Mapping[LpipsNet, float]) -> dict[str, float | None]:
    return {f"lpips_{net}": _finite(value) for net, value in scores.items()}


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
