"""How hard each pixel of a training image is: what hard sample mining would choose its samples by.

The hardness of a pixel is the sum over the samples of its ray of G, the norm of the gradient of the loss with respect
to the pre-activations. Samples are drawn in proportion to G, so this is also the share of a step that the pixel gets.
It is defined where a photo says what the loss is, and for any model: also one that was trained on every sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raymine import pictures
from raymine.contracts import targets_of
from raymine.kernels.judge.op import Wanted
from raymine.mining.diagnose import HARD, ray_importance, top_share
from raymine.pixels import Pixels
from raymine.render import first_pass
from raymine.step.data import TrainData
from raymine.step.mined import objective_gradients
from raymine.step.objective import Objective
from raymine.step.state import TrainState

CHUNK = 1 << 12
"""Rays of a picture that are processed at a time."""


@dataclass(frozen=True, eq=False)
class HardView:
    """A photo [H, W, 3] float32 in 0..1 over the background, and the hardness [H, W] float32 of its pixels."""

    photo: np.ndarray
    hardness: np.ndarray

    @property
    def hardest_tenth(self) -> float:
        """The share of the hardness that the hardest tenth of the pixels has: 0.1 if all are equally hard."""
        return top_share(torch.from_numpy(self.hardness).flatten(), HARD)

    def picture(self) -> np.ndarray:
        """The hardness in colour over the photo in grey, [H, W, 3] uint8 (`pictures.hardness_picture`)."""
        return pictures.hardness_picture(self.photo, self.hardness)


def hard_view(
    state: TrainState,
    views: TrainData,
    index: int,
    longest: int,
    *,
    trained_as: int | None = None,
    trained: bool = True,
    unwanted: Callable[[], bool] = lambda: False,
) -> HardView | None:
    """The hardness of view `index` of `views`, at most `longest` pixels a side; None if it became `unwanted`.

    trained_as, trained: as in `hardness_of`.
    """
    pixels, shape = spread_pixels(views, index, longest)
    found = hardness_of(state, views, pixels, trained_as=trained_as, trained=trained, unwanted=unwanted)
    return None if found is None else HardView(photo_of(views, pixels).reshape(*shape, 3).numpy(), found.reshape(shape))


def spread_pixels(views: TrainData, index: int, longest: int) -> tuple[Pixels, tuple[int, int]]:
    """Pixels of a view in evenly spaced rows and columns, and their numbers: all, or `longest` of the longer side."""
    height, width = (int(side) for side in views.images.sizes[index])
    factor = min(1.0, longest / max(height, width))
    rows, columns = max(1, round(height * factor)), max(1, round(width * factor))
    y, x = torch.meshgrid(_middles(height, rows), _middles(width, columns), indexing="ij")
    return Pixels(torch.full((rows * columns,), index), y.reshape(-1), x.reshape(-1)), (rows, columns)


def photo_of(views: TrainData, pixels: Pixels) -> Tensor:
    """The colours [R, 3] of pixels on the CPU, over the background of the scene, or over black."""
    rgba, _ = views.images.gather(*pixels)
    rgba = rgba.cpu()
    return torch.lerp(
        rgba.new_tensor(views.background or (0.0, 0.0, 0.0)).expand(len(rgba), 3), rgba[:, :3], rgba[:, 3:]
    )


def hardness_of(
    state: TrainState,
    views: TrainData,
    pixels: Pixels,
    *,
    trained_as: int | None = None,
    trained: bool = True,
    unwanted: Callable[[], bool] = lambda: False,
) -> np.ndarray | None:
    """The hardness [R] float32 of pixels (image, row, column, each [R] on the CPU); None if it became `unwanted`.

    The field is the one in training, not its average. The state does not change, nor do gradients of its parameters.
    Terms of the loss that compare with more than colours take no part. trained_as: of the image that all pixels are of,
    its number among the training images, where `views` are others than these; refined poses and exposures go by it.
    trained: False if the image is not among them; then its pose is the given one, and its exposure the mean one.
    """
    background = torch.tensor(views.background or (0.0, 0.0, 0.0), device=state.device)
    state.fade_levels()
    parts = []
    for start in range(0, len(pixels[0]), CHUNK):
        if unwanted():
            return None
        image, y, x = (part[start : start + CHUNK] for part in pixels)
        rgba, weight = views.images.gather(image, y, x)
        rgba, weight = rgba.to(state.device), weight.to(state.device)
        image, y, x = (part.to(state.device) for part in (image, y, x))
        rays = views.rig.rays_for_pixels(image, x, y)
        number = image if trained_as is None else torch.full_like(image, trained_as)
        if state.poses is not None and trained:
            rays = state.poses.refine(rays, number).detached()
        backdrop = background.expand(len(rgba), 3)
        wanted = Wanted(torch.lerp(backdrop, rgba[:, :3], rgba[:, 3:]), backdrop, weight)
        samples = state.sampler.sample(rays, state.field).samples
        first, _ = first_pass(state.field, rays, samples, state.config.mining.stop)
        without = targets_of(state.config.loss)
        objective = Objective(state, rays, wanted, image=number, without=without, exposed=trained)
        size = objective_gradients(state, objective, first, samples, alone=True).size
        # The loss is a mean over the rays of a chunk. Times their number, it does not depend on the size of the chunk.
        parts.append(ray_importance(size, samples.ray_id, len(rays)) * weight.sum().clamp_min(1.0))
    return torch.cat(parts).cpu().numpy()


def _middles(length: int, count: int) -> Tensor:
    """The middles of `count` equal stretches of `length` pixels, [count] int64."""
    return torch.arange(count) * length // count + length // (2 * count)
