"""A tiny scene that moves: a ball coloured by its normal goes from left to right while the camera jumps around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from raymine.contracts import Bounds, Camera, Frame, Scene
from raymine.rays import CameraRig
from raymine.step import TrainData
from support.scenes import MemoryImages, look_at

SIZE, FOCAL, RADIUS = 24, 30.0, 0.4
_GOLDEN = 2.399963


def centre_at(time: float) -> np.ndarray:
    """Centre of the ball [3] at a time in 0..1."""
    return np.array([0.25 * np.cos(np.pi * time), 0.0, 0.15 * np.sin(np.pi * time)])


def moving_scene(views: int = 24, first: float = 0.0) -> Scene:
    """`views` frames at times from 0 to 1, each from another side. first: azimuth of the first camera in radians."""
    camera = Camera(SIZE, SIZE, FOCAL, FOCAL, SIZE / 2, SIZE / 2)
    frames = []
    for i in range(views):
        a, h = first + _GOLDEN * i, 0.6 * np.sin(3.0 * i)
        eye = 3.0 * np.array([np.cos(a) * np.cos(h), np.sin(a) * np.cos(h), np.sin(h)])
        frames.append(Frame(Path(f"view_{i}.png"), 0, look_at(eye), time=i / (views - 1)))
    bounds = Bounds(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
    return Scene(Path("moving"), "memory", (camera,), tuple(frames), bounds, (1.0, 1.0, 1.0), np.eye(4))


def moving_data(scene: Scene, device: torch.device | str = "cpu") -> TrainData:
    """Rays and pictures of all frames of the scene."""
    rig = CameraRig(scene, range(len(scene.frames)))
    images = MemoryImages([_picture(rig, i) for i in range(len(rig))])
    return TrainData(CameraRig(scene, range(len(rig)), device), images, scene.bounds, scene.background)


def write_moving_scene(folder: Path, views: int = 24) -> Path:
    """The scene as files in Blender's format, with 4 test views at other times and from other sides."""
    for split, scene in (("train", moving_scene(views)), ("test", moving_scene(4, first=1.0))):
        data, frames = moving_data(scene), []
        (folder / split).mkdir(parents=True)
        for i, frame in enumerate(scene.frames):
            Image.fromarray(data.images.image(i)).save(folder / split / f"r_{i}.png")
            pose = [*frame.pose.tolist(), [0.0, 0.0, 0.0, 1.0]]
            frames.append({"file_path": f"./{split}/r_{i}", "time": frame.time, "transform_matrix": pose})
        angle = 2 * float(np.arctan(SIZE / (2 * FOCAL)))
        (folder / f"transforms_{split}.json").write_text(json.dumps({"camera_angle_x": angle, "frames": frames}))
    return folder


def _picture(rig: CameraRig, index: int) -> np.ndarray:
    """[SIZE, SIZE, 4] uint8: what the camera sees at its time."""
    rays = rig.rays_for_image(index)
    assert rays.time is not None
    origins = rays.origins - torch.from_numpy(centre_at(float(rays.time[0]))).float()
    along = (origins * rays.directions).sum(-1)
    inside = along**2 - (origins**2).sum(-1) + RADIUS**2
    normal = (origins + (-along - inside.clamp_min(0).sqrt())[:, None] * rays.directions) / RADIUS
    rgba = torch.cat((normal * 0.5 + 0.5, torch.ones(len(normal), 1)), -1) * (inside > 0)[:, None]
    return (rgba.reshape(SIZE, SIZE, 4) * 255).round().to(torch.uint8).numpy()
