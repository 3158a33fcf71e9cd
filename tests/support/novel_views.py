"""Scenes that have cameras only, and a renderer of a ball, for tests of camera paths and videos."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raymine.cameras import look_at
from raymine.contracts import Bounds, Camera, Frame, Rays, Rendered, Scene

CAMERA = Camera(40, 30, 50.0, 50.0, 20.0, 15.0)


def make_scene(poses: list[np.ndarray], *, dynamic: bool = False, normalisation: np.ndarray | None = None) -> Scene:
    frames = tuple(
        Frame(Path(f"{i}.png"), 0, pose, time=i / len(poses) if dynamic else None) for i, pose in enumerate(poses)
    )
    return Scene(
        root=Path("scene"),
        format="test",
        cameras=(CAMERA,),
        frames=frames,
        bounds=Bounds(),
        background=(1.0, 1.0, 1.0),
        normalisation=np.eye(4) if normalisation is None else normalisation,
    )


def ring(target: np.ndarray, radius: float, elevation: float, azimuths: np.ndarray) -> list[np.ndarray]:
    cos, sin = math.cos(elevation), math.sin(elevation)
    return [look_at(target + radius * np.array([cos * math.cos(a), cos * math.sin(a), sin]), target) for a in azimuths]


def forward_scene() -> Scene:
    grid = [(x, z) for x in (-0.4, 0.0, 0.4) for z in (-0.2, 0.0, 0.2)]
    return make_scene([look_at(np.array([x, 4.0, z]), np.array([x, 0.0, z])) for x, z in grid])


def assert_rigid(poses: np.ndarray) -> None:
    rotations = poses[:, :, :3]
    assert np.abs(rotations @ rotations.transpose(0, 2, 1) - np.eye(3)).max() < 1e-9
    assert np.allclose(np.linalg.det(rotations), 1.0)


class Sphere:
    """A red unit ball at the origin, by ray intersection."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        along = -(rays.origins * rays.directions).sum(1)
        closest = (rays.origins + along[:, None] * rays.directions).norm(dim=1)
        hit = (closest < 1.0) & (along > 0)
        depth = along - (1.0 - closest.square()).clamp_min(0).sqrt()
        colour = torch.where(hit[:, None], torch.tensor([1.0, 0.0, 0.0]), background)
        return Rendered(colour, hit.float(), torch.where(hit, depth, 0.0), torch.empty(0))
