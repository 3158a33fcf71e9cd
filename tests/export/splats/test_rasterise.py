"""The splat rasteriser: splats worked out by hand, order, gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine.contracts import Camera
from raymine.export.splats.rasterise import BLUR, colour_along, rasterise
from raymine.export.splats.record import Splats

CAMERA = Camera(21, 17, 20.0, 20.0, 10.5, 8.5)
POSE = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 4.0]])
"""Looks down the z axis from z = 4."""


def splats(count: int, degree: int = 0, seed: int = 0) -> Splats:
    drawn = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn)

    means, scales = 0.5 * noise(count, 3), -1.5 + 0.3 * noise(count, 3)
    return Splats(means, scales, noise(count, 4), noise(count), 0.5 * noise(count, (degree + 1) ** 2, 3))


def one(mean: tuple[float, float, float], scale: float, opacity: float, red: float) -> Splats:
    colour = torch.tensor([red, 0.5, 0.5]) - 0.5
    base = colour / 0.28209479177387814
    turn = torch.tensor([[1.0, 0, 0, 0]])
    logit = torch.tensor([math.log(opacity / (1 - opacity))])
    return Splats(
        torch.tensor([mean], dtype=torch.float32), torch.full((1, 3), math.log(scale)), turn, logit, base[None, None]
    )


def joined(*parts: Splats) -> Splats:
    return Splats(*(torch.cat(each) for each in zip(*(part.tensors() for part in parts), strict=True)))


def test_one_splat_is_a_gaussian_around_its_pixel() -> None:
    """At depth 4 with focal length 20 a deviation of 0.4 is 2 pixels; the blur adds 0.3 to its square."""
    drawn = rasterise(one((0, 0, 0), 0.4, 0.8, 1.0), CAMERA, POSE)
    variance = 2.0**2 + BLUR
    for x, y in ((10, 8), (12, 8), (11, 11)):
        alpha = 0.8 * math.exp(-0.5 * ((x - 10) ** 2 + (y - 8) ** 2) / variance)
        assert float(drawn.opacity[y, x]) == pytest.approx(alpha, rel=1e-4)
        assert drawn.colour[y, x].tolist() == pytest.approx([alpha, 0.5 * alpha, 0.5 * alpha], rel=1e-4)
    assert float(drawn.opacity[0, 0]) == 0
    # One unit up is 5 pixels up, and up is towards row 0.
    moved = rasterise(one((0.25, 1.0, 0), 0.4, 0.8, 1.0), CAMERA, POSE).opacity
    assert divmod(int(moved.argmax()), 21) == (3, 11)


def test_nearer_splat_covers_the_farther_one_in_either_order() -> None:
    near, far = one((0, 0, 1), 0.4, 0.9, 1.0), one((0, 0, -1), 0.4, 0.6, 0.0)
    for pair in ((near, far), (far, near)):
        drawn = rasterise(joined(*pair), CAMERA, POSE)
        assert float(drawn.opacity[8, 10]) == pytest.approx(1 - 0.1 * 0.4, rel=1e-4)
        assert float(drawn.colour[8, 10, 0]) == pytest.approx(0.9, rel=1e-4)
        assert drawn.over((1.0, 1.0, 1.0))[8, 10, 0] == pytest.approx(0.9 + 0.04, rel=1e-4)


def test_splats_behind_the_camera_and_no_splats_draw_nothing() -> None:
    assert float(rasterise(one((0, 0, 5), 0.4, 0.9, 1.0), CAMERA, POSE).opacity.max()) == 0
    assert float(rasterise(splats(0), CAMERA, POSE).opacity.max()) == 0


def test_colour_depends_on_the_direction_as_harmonics_say() -> None:
    coefficients = torch.zeros(1, 4, 3)
    coefficients[0, 2, 1] = 1.0
    seen = colour_along(coefficients, torch.tensor([[0.0, 0.0, -1.0]]))
    assert seen[0].tolist() == pytest.approx([0.5, 0.5 - math.sqrt(3 / (4 * math.pi)), 0.5])


@pytest.mark.parametrize("part", ["means", "log_scales", "quaternions", "logits", "harmonics"])
def test_gradient_matches_differences(part: str) -> None:
    base = splats(12, degree=1)
    # Splats at clearly different depths: the picture jumps where two of them change places.
    base.means[:, 2] = torch.linspace(-1, 1, 12)
    weight = torch.randn(17, 21, 4, generator=torch.Generator().manual_seed(1))

    def value(values: torch.Tensor) -> torch.Tensor:
        drawn = rasterise(replace(base, **{part: values}), CAMERA, POSE)
        return (drawn.colour * weight[..., :3]).sum() + (drawn.opacity * weight[..., 3]).sum()

    start = getattr(base, part).clone().requires_grad_(True)
    (found,) = torch.autograd.grad(value(start), start)
    expected, step = torch.zeros(start.numel()), 1e-3
    with torch.no_grad():
        for i in range(start.numel()):
            moved = torch.zeros(start.numel())
            moved[i] = step
            there, here = value(start + moved.view(start.shape)), value(start - moved.view(start.shape))
            expected[i] = (there - here) / (2 * step)
    error = (found.flatten() - expected).abs()
    assert float(error.median()) < 2e-3
    # A splat ends where its alpha falls below 1/255. A pixel that crosses this limit changes the value by a few times
    # 1/255, and the difference by that over twice the step.
    jumps = error * 2 * step
    assert float(jumps.max()) < 4 / 255
    assert float((jumps > 1e-5).float().mean()) < 0.3
    assert float(found.abs().max()) > 0.1
