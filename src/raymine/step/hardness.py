"""How hard each pixel of a training image is: what hard sample mining would choose its samples by.

The hardness of a pixel is the sum over the samples of its ray of G, the norm of the gradient of the loss with respect
to the pre-activations. Samples are drawn in proportion to G, so this is also the share of a step that the pixel gets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from raymine.kernels.judge.op import Wanted
from raymine.mining.diagnose import ray_importance
from raymine.pixels import Pixels
from raymine.render import first_pass
from raymine.step.data import TrainData
from raymine.step.mined import by_autograd
from raymine.step.objective import Objective
from raymine.step.state import TrainState

CHUNK = 1 << 12
"""Rays of a picture that are processed at a time."""


def hardness_picture(
    state: TrainState, views: TrainData, pixels: Pixels, *, unwanted: Callable[[], bool] = lambda: False
) -> np.ndarray | None:
    """The hardness [R] float32 of pixels (image, row, column, each [R] on the CPU); None if it became `unwanted`.

    The field is the one in training, not its average. The state does not change, nor do gradients of its parameters.
    Terms of the loss that compare with more than colours take no part.
    """
    background = torch.tensor(views.background or (0.0, 0.0, 0.0), device=state.device)
    parts = []
    for start in range(0, len(pixels[0]), CHUNK):
        if unwanted():
            return None
        image, y, x = (part[start : start + CHUNK] for part in pixels)
        rgba, weight = views.images.gather(image, y, x)
        rgba, weight = rgba.to(state.device), weight.to(state.device)
        image, y, x = (part.to(state.device) for part in (image, y, x))
        rays = views.rig.rays_for_pixels(image, x, y)
        if state.poses is not None:
            rays = state.poses.refine(rays, image).detached()
        backdrop = background.expand(len(rgba), 3)
        wanted = Wanted(torch.lerp(backdrop, rgba[:, :3], rgba[:, 3:]), backdrop, weight)
        samples = state.sampler.sample(rays, state.field).samples
        first, _ = first_pass(state.field, rays, samples, state.config.mining.stop)
        size = by_autograd(Objective(state, rays, wanted, image=image), first, samples, alone=True).size
        # The loss is a mean over the rays of a chunk. Times their number, it does not depend on the size of the chunk.
        parts.append(ray_importance(size, samples.ray_id, len(rays)) * weight.sum().clamp_min(1.0))
    return torch.cat(parts).cpu().numpy()
