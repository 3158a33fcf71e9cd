"""Refine Gaussian splats against views of the field, through the differentiable rasteriser."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from raymine.errors import TrainingError
from raymine.export.model import Progress, no_progress

from .place import Seen
from .rasterise import rasterise
from .record import Splats

_RATES = {"means": 0.08, "log_scales": 0.02, "quaternions": 0.01, "logits": 0.05, "colour": 0.01, "higher": 0.002}
"""Learning rates of Adam. That of the means is in standard deviations of the median splat."""


def refine(splats: Splats, views: Sequence[Seen], steps: int, progress: Progress = no_progress) -> Splats:
    """Adam on every tensor of the splats, one view a step; rates fall to a tenth. The number of splats stays.

    Colours and opacities are compared without a background, so that the result does not depend on one. Every second
    step sees its view at half the size. Splats that are refined at one size fit the blur that a viewer adds at this
    size: those of lego, refined at 200 x 200 alone, had 28.5 dB there and 22.2 dB at 400 x 400 (9 test views).
    """
    size = float(splats.log_scales.amax(1).median().exp())
    base, higher = splats.harmonics[:, :1].clone(), splats.harmonics[:, 1:].clone()
    parts = {
        "means": splats.means.clone(),
        "log_scales": splats.log_scales.clone(),
        "quaternions": splats.quaternions.clone(),
        "logits": splats.logits.clone(),
        "colour": base,
        "higher": higher,
    }
    for value in parts.values():
        value.requires_grad_(True)
    rates = {**_RATES, "means": _RATES["means"] * size}
    adam = torch.optim.Adam([{"params": [parts[name]], "lr": rate} for name, rate in rates.items()], eps=1e-12)
    generator = torch.Generator().manual_seed(0)
    order: list[int] = []
    for step in range(steps):
        order = order or torch.randperm(len(views), generator=generator).tolist()
        view = views[order.pop()]
        factor = 0.1 ** (step / max(1, steps - 1))
        for group, rate in zip(adam.param_groups, rates.values(), strict=True):
            group["lr"] = rate * factor
        adam.zero_grad()
        loss = _difference(_joined(parts), halved(view) if step % 2 else view)
        if not math.isfinite(loss.item()):
            raise TrainingError("The refinement of the splats became non-finite.", hint="Export with no refinement.")
        loss.backward()
        adam.step()
        progress("Refining splats", step + 1, steps)
    return Splats(*(value.detach() for value in _joined(parts).tensors()))


def halved(view: Seen) -> Seen:
    """A view at half its size; one of odd size stays as it is."""
    height, width = view.opacity.shape
    if height % 2 or width % 2:
        return view
    colour = view.colour.view(height // 2, 2, width // 2, 2, 3).mean((1, 3))
    opacity = view.opacity.view(height // 2, 2, width // 2, 2).mean((1, 3))
    return Seen(view.camera.resized(width // 2, height // 2), view.pose, colour, opacity)


def _joined(parts: dict[str, Tensor]) -> Splats:
    colour = torch.cat((parts["colour"], parts["higher"]), 1)
    return Splats(parts["means"], parts["log_scales"], parts["quaternions"], parts["logits"], colour)


def _difference(splats: Splats, view: Seen) -> Tensor:
    drawn = rasterise(splats, view.camera, view.pose)
    colour, opacity = drawn.colour - view.colour, drawn.opacity - view.opacity
    return colour.square().mean() + opacity.square().mean() / 3 + 0.02 * (colour.abs().mean())
