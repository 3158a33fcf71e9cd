"""Exposure of images: the correction itself, its anchor, recovery of known exposures, resume."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine.errors import ConfigError
from raymine.mining import MiningConfig
from raymine.rays import CameraRig
from raymine.step import TrainData, TrainState, create_state, train_step
from raymine.step.exposure import Exposure, ExposureConfig, expose
from raymine.step.objective import closed_form
from raymine.step.poses import PoseConfig
from support.scenes import MemoryImages, ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
DATA = ball_scene()[1]
GAIN = (0.75, 1.25)


def exposed_ball() -> TrainData:
    """Each of four views of the ball twice, darker and brighter: no colour that depends on the view explains that."""
    scene, data = ball_scene(4)
    images = []
    for gain in GAIN:
        for i in range(4):
            rgba = data.images.image(i).astype(np.float64)
            rgba[..., :3] *= 0.7 * gain
            images.append(rgba.round().astype(np.uint8))
    return replace(data, rig=CameraRig(scene, (0, 1, 2, 3) * 2), images=MemoryImages(images))


def fresh(policy: str = "hard") -> TrainState:
    mining = MiningConfig(policy=policy)  # type: ignore[arg-type]
    config = replace(CONFIG, mining=mining, exposure=ExposureConfig(lr=1e-2), poses=PoseConfig(fade=0.08))
    state = create_state(config, DATA, seed=0, device=CPU)
    state.horizon = 200
    return state


def test_correction_by_hand_leaves_the_background_alone() -> None:
    """A ray of opacity 0.75: the camera saw (colour - 0.25 background), which becomes twice as bright and 0.1 more."""
    colour, opacity, background = torch.tensor([[0.5, 0.5, 0.5]]), torch.tensor([0.75]), torch.tensor([[0.4, 0.0, 1.0]])
    code = torch.tensor([[np.log(2.0)] * 3 + [0.1] * 3]).float()
    expected = 2 * (colour - 0.25 * background) + 0.075 + 0.25 * background
    assert torch.allclose(expose(colour, opacity, background, code), expected)
    empty = expose(background, torch.zeros(1), background, code)
    assert torch.allclose(empty, background)


def test_gradients_of_the_correction() -> None:
    random = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (4,), (4, 3), (4, 6))
    parts = [torch.rand(shape, generator=random, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(expose, parts)


def test_mean_over_images_is_the_identity() -> None:
    part = Exposure(ExposureConfig(), 5, 1.0, CPU)
    with torch.no_grad():
        part.code.normal_()
        assert torch.allclose(part.codes().mean(0), torch.zeros(6), atol=1e-6)


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_known_exposures_are_found(policy: str) -> None:
    data = exposed_ball()
    mining = MiningConfig(policy=policy)  # type: ignore[arg-type]
    reports = {}
    for exposure in (None, ExposureConfig(lr=1e-2)):
        state = create_state(replace(CONFIG, mining=mining, exposure=exposure), data, seed=0, device=CPU)
        state.horizon = 200
        reports[exposure is not None] = [train_step(state, data) for _ in range(200)]
    assert state.exposure is not None
    code = state.exposure.codes().detach()
    # Gain and bias share the work; this is what they do to a medium grey.
    bright = (0.35 * code[:, :3].exp() + code[:, 3:]).mean(1)
    assert float((bright[4:] / bright[:4]).min()) > 1.3
    assert float((bright[4:] / bright[:4]).max()) < 2.2
    with_it, without = (np.mean([r.mse for r in reports[key][-20:]]) for key in (True, False))
    assert with_it < 0.6 * without


def test_closed_form_is_not_used_with_an_exposure() -> None:
    assert closed_form(fresh()) is None


@pytest.mark.parametrize("policy", ["none", "hard"])
def test_resume_with_poses_and_exposure_is_exact(policy: str) -> None:
    whole, first, second = fresh(policy), fresh(policy), fresh(policy)
    for _ in range(20):
        train_step(whole, DATA)
    for _ in range(10):
        train_step(first, DATA)
    second.restore({name: value.clone() for name, value in first.tensors().items()}, first.scalars())
    for _ in range(10):
        train_step(second, DATA)
    for name, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[name]), name
    assert float(whole.tensors()["exposure.code"].abs().max()) > 0


def test_learning_rate_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"exposure\.lr must be above 0"):
        ExposureConfig(lr=0.0)
