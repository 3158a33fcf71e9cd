"""Images that stay hard: the rule on errors worked out by hand, and the errors of a known renderer."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine.contracts import Bounds, Rays, Rendered
from raymine.evaluate import hard_images
from raymine.evaluate.hard_images import ImageErrors, stay_hard
from raymine.step import TrainConfig, TrainData, TrainState, create_state, train_step
from raymine.step.exposure import Exposure, ExposureConfig
from raymine.step.poses import PoseConfig, PoseRefinement
from support.poses import perturbed, with_cameras_of
from support.scenes import MemoryImages, ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")

OTHERS = [0.010, 0.011, 0.009, 0.012, 0.010, 0.008, 0.011, 0.010, 0.009]
LEARNT = [error / 4 for error in OTHERS]


def test_image_that_is_harder_and_does_not_improve_is_named() -> None:
    assert stay_hard([[*OTHERS, 0.05], [*LEARNT, 0.05]]) == (9,)
    assert stay_hard([[0.04, *OTHERS, 0.05], [0.04, *LEARNT, 0.05]]) == (10, 0)


def test_hard_image_that_improves_with_the_others_is_not_named() -> None:
    assert stay_hard([[*OTHERS, 0.2], [*LEARNT, 0.05]]) == ()


def test_image_that_does_not_improve_but_is_hardly_harder_is_not_named() -> None:
    assert stay_hard([[*OTHERS, 0.007], [*LEARNT, 0.007]]) == ()


def test_nothing_is_named_while_the_others_do_not_improve() -> None:
    assert stay_hard([[*OTHERS, 0.05], [*OTHERS, 0.05]]) == ()


def test_nothing_is_named_where_errors_usually_differ_as_much() -> None:
    wide = [0.001 * 4.0**k for k in range(9)]
    first = [*(4 * error for error in wide), wide[6]]
    assert stay_hard([first, [*wide, wide[6]]]) == ()


@pytest.mark.parametrize(
    "looks", [[], [[*LEARNT, 0.05]], [[0.01] * 3 + [0.05], [0.0025] * 3 + [0.05]], [[*OTHERS, 0.05], LEARNT]]
)
def test_fewer_than_two_looks_or_eight_images_name_nothing(looks: list[list[float]]) -> None:
    assert stay_hard(looks) == ()


def test_masked_images_and_errors_of_zero_are_no_reason() -> None:
    assert stay_hard([[*OTHERS, -1.0, 0.0, 0.05], [*LEARNT, -1.0, 0.0, 0.05]]) == (11,)


class Pictures:
    """Opaque grey images; the last one is transparent on the left. The upper half of image 1 is masked."""

    def __init__(self, count: int) -> None:
        self.sizes = np.tile(np.array([[20, 30]]), (count, 1))
        self.asked = 0

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        assert bool(((y >= 0) & (y < 20) & (x >= 0) & (x < 30)).all())
        self.asked += len(image)
        rgba = torch.full((len(image), 4), 0.5)
        rgba[:, 3] = torch.where((image == len(self.sizes) - 1) & (x < 15), 0.0, 1.0)
        return rgba, torch.where((image == 1) & (y < 10), 0.0, 1.0)


class Rig:
    """Rays that carry image, column and row in their origin."""

    device = torch.device("cpu")

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def rays_for_pixels(self, image: Tensor, x: Tensor, y: Tensor) -> Rays:
        origins = torch.stack([image, x, y], dim=1).float()
        return Rays(origins, origins, origins[:, 0], origins[:, 0])


class Painter:
    """Paints 0.5 + an error for each image; pixels in the masked or transparent places get a huge error."""

    def __init__(self, error: list[float]) -> None:
        self.error = torch.tensor(error)
        self.rays = 0

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        self.rays += len(rays)
        image, x, y = rays.origins.long().unbind(1)
        value = 0.5 + self.error[image]
        value[(image == 1) & (y < 10) | (image == len(self.error) - 1) & (x < 15)] = 1.0
        full = value.new_ones(len(rays))
        return Rendered(value[:, None].expand(-1, 3), full, full, full)


def errors_of(
    count: int, poses: PoseRefinement | None = None, exposure: Exposure | None = None
) -> tuple[ImageErrors, Pictures]:
    pictures: Any = Pictures(count)
    rig: Any = Rig(count)
    state: Any = SimpleNamespace(poses=poses, exposure=exposure)
    return ImageErrors(TrainData(rig, pictures, Bounds()), (0.0, 0.0, 0.0), state), pictures


def test_look_gives_the_error_of_each_image_without_masked_and_transparent_pixels() -> None:
    errors, _ = errors_of(4)
    assert errors.look(Painter([0.1, 0.2, 0.0, 0.3])) == pytest.approx((0.01, 0.04, 0.0, 0.09), rel=1e-3)


def test_look_has_a_bounded_number_of_rays_and_reads_pixels_once() -> None:
    for count, each in ((4, 64), (100, 20), (1000, 8)):
        errors, pictures = errors_of(count)
        painter = Painter([0.1] * count)
        errors.look(painter)
        assert painter.rays == count * each
        asked = pictures.asked
        errors.look(painter)
        assert pictures.asked == asked


def test_largest_twelfth_and_nan_of_a_model_do_not_decide() -> None:
    assert hard_images._trimmed_mean(np.array([1.0] * 11 + [100.0])) == 1.0
    assert hard_images._trimmed_mean(np.array([3.0])) == 3.0
    assert hard_images._trimmed_mean(np.array([])) == -1.0
    errors, _ = errors_of(4)
    assert errors.look(Painter([math.nan] * 4)) == pytest.approx((0.25,) * 4, rel=1e-3)


def test_other_pixels_must_confirm_a_hard_image() -> None:
    errors, _ = errors_of(12)
    usual = [0.05] * 11
    first = (0.01,) * 11 + (0.09,)
    last = (0.0025,) * 11 + (0.09,)
    assert errors.hard_images([first, last], Painter([*usual, 0.3])) == (11,)
    assert errors.hard_images([first, last], Painter([*usual, 0.06])) == ()
    assert errors.hard_images([first, first], Painter([*usual, 0.3])) == ()


def test_look_is_at_refined_poses_and_with_fitted_exposures() -> None:
    bounds = Bounds()
    poses = PoseRefinement(PoseConfig(), 6, bounds, 1e-2, CPU)
    exposure = Exposure(ExposureConfig(), 6, 1e-2, CPU)
    with torch.no_grad():
        # The painter knows an image by the x of its origins, so a camera that moved by 1 is that of the next image.
        poses.twist[3, 3] = 1 / poses.scale
        exposure.code[4, 3:] = -0.2
        exposure.code[2, 3:] = 0.2
    painter = Painter([0.1, 0.1, 0.1, 0.1, 0.3, 0.1])
    assert errors_of(6)[0].look(painter)[2:5] == pytest.approx((0.01, 0.01, 0.09), rel=1e-3)
    found = errors_of(6, poses, exposure)[0].look(painter)
    assert found[2:5] == pytest.approx((0.09, 0.09, 0.01), rel=1e-3)


def uncorrected(state: TrainState) -> Any:
    """A state whose poses and exposures a look cannot know."""
    return SimpleNamespace(poses=None, exposure=None)


def looks_of(config: TrainConfig, data: TrainData, steps: int) -> tuple[list[list[float]], list[list[float]]]:
    """Errors after a tenth of a run and at its end: as the guard sees them, and at given poses without exposures."""
    state = create_state(config, data, seed=0, device=CPU)
    state.horizon = steps
    guards = [ImageErrors(data, (1.0, 1.0, 1.0), seen) for seen in (state, uncorrected(state))]
    looks: tuple[list[list[float]], list[list[float]]] = ([], [])
    for step in range(1, steps + 1):
        train_step(state, data)
        if step in (steps // 10, steps):
            for guard, found in zip(guards, looks, strict=True):
                found.append(list(guard.look(state.renderer())))
    return looks


def test_run_that_refined_its_only_wrong_pose_names_nothing() -> None:
    scene, data = ball_scene(12)
    wrong = with_cameras_of(data, perturbed(scene, (5,), 8.0, 0.15))
    poses = PoseConfig(lr=5e-3, fade=0.1, limit_degrees=15, limit_distance=0.3)
    seen, given = looks_of(replace(CONFIG, poses=poses), wrong, 600)
    assert stay_hard(seen) == ()
    assert stay_hard(given) == (5,), "the pose was refined, or the test shows nothing"


def test_dark_photo_with_an_exposure_has_the_error_of_the_others() -> None:
    _, data = ball_scene(12)
    images = [data.images.image(i).copy() for i in range(12)]
    images[5][..., :3] = (images[5][..., :3] * 0.5).astype(np.uint8)
    dark = replace(data, images=MemoryImages(images))
    (_, seen), (_, given) = looks_of(replace(CONFIG, exposure=ExposureConfig(lr=1e-2)), dark, 300)
    usual = float(np.median(seen))
    assert seen[5] < 3 * usual
    assert given[5] > 10 * usual, "the exposure explains the dark photo, or the test shows nothing"
