"""A tiny analytic scene in memory: a textured ball, so that a step can be trained without any file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from raymine.contracts import Bounds, Camera, Frame, Scene
from raymine.rays import CameraRig
from raymine.step import TrainData

SIZE = 24

SCENE = Scene(
    Path("nowhere"),
    "blender",
    (Camera(8, 8, 8.0, 8.0, 4.0, 4.0),),
    (Frame(Path("x"), 0, np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4]])),),
    Bounds(),
    None,
    np.eye(4),
)
"""A scene of one frame without pixels, for recipes."""


class MemoryImages:
    """An `ImageSource` over arrays [H, W, 4] uint8."""

    def __init__(self, images: list[np.ndarray], weight: float = 1.0) -> None:
        self._images = torch.from_numpy(np.stack(images))
        self.sizes = np.array([image.shape[:2] for image in images], dtype=np.int64)
        self._weight = weight

    def gather(self, image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rgba = self._images[image, y, x].float() / 255
        return rgba, torch.full((len(rgba),), self._weight)

    def image(self, index: int) -> np.ndarray:
        return self._images[index].numpy()

    def mask(self, index: int) -> np.ndarray | None:
        return None if self._weight > 0 else np.zeros(self.sizes[index], np.uint8)


def look_at(eye: np.ndarray) -> np.ndarray:
    """Camera-to-world [3, 4] at `eye`, looking at the origin, z up."""
    back = eye / np.linalg.norm(eye)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    return np.stack((right, np.cross(back, right), back, eye), axis=1)


def ball_scene(views: int = 8) -> tuple[Scene, TrainData]:
    """A ball of radius 0.8 coloured by its normal, over transparency, seen from `views` places at distance 3."""
    camera = Camera(SIZE, SIZE, 30.0, 30.0, SIZE / 2, SIZE / 2)
    frames = []
    for i in range(views):
        a, h = 2 * np.pi * i / views, 0.6 * np.sin(3.0 * i)
        eye = 3.0 * np.array([np.cos(a) * np.cos(h), np.sin(a) * np.cos(h), np.sin(h)])
        frames.append(Frame(Path(f"view_{i}.png"), 0, look_at(eye)))
    bounds = Bounds(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
    scene = Scene(Path("ball"), "memory", (camera,), tuple(frames), bounds, (1.0, 1.0, 1.0), np.eye(4))
    rig = CameraRig(scene, range(views))
    images = [_ball(rig, i) for i in range(views)]
    return scene, TrainData(rig, MemoryImages(images), bounds, scene.background)


def _ball(rig: CameraRig, index: int) -> np.ndarray:
    rays = rig.rays_for_image(index)
    along = (rays.origins * rays.directions).sum(-1)
    inside = along**2 - (rays.origins**2).sum(-1) + 0.64
    t = -along - inside.clamp_min(0).sqrt()
    normal = (rays.origins + t[:, None] * rays.directions) / 0.8
    rgba = torch.cat((normal * 0.5 + 0.5, torch.ones(len(t), 1)), -1) * (inside > 0)[:, None]
    return (rgba.reshape(SIZE, SIZE, 4) * 255).round().to(torch.uint8).numpy()
