"""Compare splats with the field that they were made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .place import Seen
from .rasterise import rasterise
from .record import Splats


@torch.no_grad()
def splat_psnr(splats: Splats, views: Sequence[Seen], count: int = 6) -> float:
    """Splats, drawn, against renderings of the field from up to `count` evenly spread views, over white, in dB."""
    chosen = views[:: max(1, -(-len(views) // count))]
    errors = []
    for view in chosen:
        drawn = rasterise(splats, view.camera, view.pose).over((1.0, 1.0, 1.0)).clamp(0, 1)
        truth = view.colour + (1 - view.opacity)[..., None]
        errors.append(float((drawn - truth.clamp(0, 1)).square().mean()))
    return -10 * math.log10(max(1e-12, sum(errors) / len(errors)))
