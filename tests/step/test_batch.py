"""The batch of a step: what its loss terms compare with where poses are refined."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raymine.losses import ColourLoss, DepthLoss
from raymine.step import create_state
from raymine.step.batch import draw_batch
from raymine.step.poses import PoseConfig
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")


class Walls:
    """A wall at depth 2 before every camera."""

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return torch.full((len(image),), 2.0)


def test_distances_to_measured_depths_do_not_depend_on_refined_poses() -> None:
    """A wall at depth 2 is 2 / cos(angle) away along a ray, however the camera has been turned."""
    _, data = ball_scene()
    config = replace(CONFIG, loss=(ColourLoss("l2"), DepthLoss()), poses=PoseConfig())
    state = create_state(config, replace(data, depths=Walls()), seed=0, device=CPU)
    given = draw_batch(state, replace(data, depths=Walls()))
    assert state.poses is not None
    with torch.no_grad():
        state.poses.twist[:, :3] = torch.tensor([0.05, -0.08, 0.03])
        state.poses.twist[:, 3:] = 0.02
    batch = draw_batch(state, replace(data, depths=Walls()))
    assert given.targets.depth is not None
    assert batch.targets.depth is not None
    assert batch.image is not None
    assert float(given.targets.depth.max() / given.targets.depth.min()) > 1.1, "rays must leave the axis"
    assert torch.allclose(batch.targets.depth, given.targets.depth, rtol=1e-6)
    turned = state.poses.moved(data.rig.poses)
    axes = -turned[batch.image, :, 2]
    along = batch.targets.depth * (batch.rays.directions.detach() * axes).sum(1)
    assert along.tolist() == pytest.approx([2.0] * len(along), rel=1e-4)
