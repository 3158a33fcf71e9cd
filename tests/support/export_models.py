"""Models for tests of exporters: a ball of known density, the built-in scene's shapes, and a small hash-grid field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from raymine.contracts import Bounds, FieldInput, FieldOutput, Scene
from raymine.export.model import ExportModel
from raymine.fields.hash_field import HashField, HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.render import VolumeRenderer
from raymine.samplers.occupancy import OccupancyConfig, OccupancySampler
from support.novel_views import make_scene, ring

CPU = torch.device("cpu")
RADIUS = 0.8

TURNED = np.array([[0.0, -2.0, 0.0, 0.3], [2.0, 0.0, 0.0, -0.2], [0.0, 0.0, 2.0, 0.1], [0.0, 0.0, 0.0, 1.0]])
"""A normalisation that turns about z, doubles lengths and moves."""


class DistanceField(nn.Module):
    """A field whose raw density falls with the distance from a surface; it is 4 on it. Colour: the position, shaded."""

    def __init__(self, distance: Callable[[Tensor], Tensor], sharpness: float = 60.0) -> None:
        super().__init__()
        self.distance, self.sharpness = distance, sharpness

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        return (4.0 - self.sharpness * self.distance(positions)).clamp(-12.0, 12.0)

    def forward(self, query: FieldInput) -> FieldOutput:
        colour = 2.0 * query.positions + 0.5 * query.directions
        return FieldOutput(colour, self.density(query.positions))


def ball(points: Tensor) -> Tensor:
    """Signed distance from a ball of `RADIUS` at the origin."""
    return points.norm(dim=-1) - RADIUS


def cameras(normalisation: np.ndarray | None = None) -> Scene:
    """A scene of 18 cameras around the origin, at three heights."""
    azimuths = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    poses = [pose for height in (-0.7, 0.2, 0.9) for pose in ring(np.zeros(3), 4.0, height, azimuths + height)]
    return make_scene(poses, normalisation=normalisation)


def model_of(field: nn.Module, normalisation: np.ndarray | None = None, bounds: Bounds | None = None) -> ExportModel:
    scene = cameras(normalisation)
    scene = replace(scene, bounds=bounds or replace(scene.bounds, near=0.05, far=8.0))
    sampler = OccupancySampler(OccupancyConfig(resolution=32, step=0.02), scene.bounds, CPU)
    views = tuple(scene.cameras[frame.camera] for frame in scene.frames)
    poses = np.stack([frame.pose for frame in scene.frames])
    return ExportModel(field, sampler, VolumeRenderer(field, sampler), scene, views, poses, CPU)  # type: ignore[arg-type]


def ball_model(normalisation: np.ndarray | None = None) -> ExportModel:
    return model_of(DistanceField(ball), normalisation)


def empty_model() -> ExportModel:
    return model_of(DistanceField(lambda points: points.new_full((len(points),), 1.0)))


def hash_model(*, levels: int = 1) -> ExportModel:
    """A hash-grid field with random features, large enough to matter."""
    bounds = Bounds(levels=levels, far=20.0)
    grid = GridSpec(levels=4, features=2, log2_entries=10, base=4, finest=64)
    field = HashField(HashFieldConfig(grid, width=16, geometry=8, colour_layers=1), bounds, seed=3)
    with torch.no_grad():
        field.table.mul_(2e4)
    return model_of(field, bounds=bounds)
