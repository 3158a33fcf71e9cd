"""Rays through pixels: origins and directions from the cameras of a scene, for training batches and whole images."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raymine.cameras import CameraTable
from raymine.contracts import Bounds, Camera, Rays, Scene

_POSE = 12
_EXTRA = 3  # near, far, time


class CameraRig:
    """The cameras of some frames of a scene as tensors on one device.

    Image i of the rig is frame `frames[i]` of the scene. One column of a table holds everything that a ray needs from
    its image: pose, near, far, time and intrinsics. So a batch costs one gather and some arithmetic. Near and far are
    those of the frame, or those of the scene if the frame has none.
    """

    def __init__(self, scene: Scene, frames: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.frames = tuple(frames)
        self.device = torch.device(device)
        chosen = [scene.frames[i] for i in self.frames]
        self.cameras = tuple(scene.cameras[f.camera] for f in chosen)
        self.dynamic = scene.dynamic
        lenses = CameraTable.build(self.cameras, self.device)
        columns = np.empty((_POSE + _EXTRA, len(chosen)))
        for i, frame in enumerate(chosen):
            near = scene.bounds.near if frame.near is None else frame.near
            far = scene.bounds.far if frame.far is None else frame.far
            columns[:_POSE, i] = frame.pose.reshape(-1)
            columns[_POSE:, i] = near, far, 0.0 if frame.time is None else frame.time
        own = torch.from_numpy(columns).to(device=self.device, dtype=torch.float32)
        self._table = torch.cat([own, lenses.values])
        self._lenses = lenses

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def table(self) -> Tensor:
        """[values, I]: pose (12, row by row), near, far, time, then the lens (`cameras.CameraTable.values`)."""
        return self._table

    @property
    def poses(self) -> Tensor:
        """[I, 3, 4] camera-to-world pose of each image."""
        return self._table[:_POSE].t().reshape(-1, 3, 4)

    @property
    def times(self) -> Tensor | None:
        """[I] time of each image in 0..1; None for a static scene."""
        return self._table[_POSE + 2].clone() if self.dynamic else None

    @property
    def lens_steps(self) -> tuple[int, int]:
        """Newton steps that the opencv and the fisheye lenses need; 0 for a model that no camera has."""
        return self._lenses.opencv_steps, self._lenses.fisheye_steps

    def rays_for_pixels(self, image: Tensor, x: Tensor, y: Tensor) -> Rays:
        """Rays [R] through pixel centres, in world units: image [R] (index into the rig), x, y [R], all int64."""
        return self._rays(self._table.index_select(1, image), x + 0.5, y + 0.5)

    def rays_for_image(self, index: int) -> Rays:
        """All H*W rays of one image of the rig, row by row."""
        x, y = _pixel_centres(self.cameras[index], self.device)
        return self._rays(self._table[:, index : index + 1], x, y)

    def view_axes(self, image: Tensor) -> Tensor:
        """[R, 3]: unit vectors along which the cameras of image [R] look."""
        return -self._table[2:_POSE:4].index_select(1, image).t()

    def reduced(self, factor: int) -> CameraRig:
        """The same cameras over images of which `factor` x `factor` pixels became one; odd rows and columns are cut."""
        made = copy.copy(self)
        made.cameras = tuple(_reduced(camera, factor) for camera in self.cameras)
        made._lenses = CameraTable.build(made.cameras, self.device)
        made._table = torch.cat([self._table[: _POSE + _EXTRA], made._lenses.values])
        return made

    def at_poses(self, poses: Tensor) -> CameraRig:
        """The same cameras at other camera-to-world poses [I, 3, 4]."""
        made = copy.copy(self)
        made._table = torch.cat([poses.to(self._table).reshape(-1, _POSE).t(), self._table[_POSE:]])
        return made

    def _rays(self, values: Tensor, x: Tensor, y: Tensor) -> Rays:
        """Columns of the table [values, R or 1] and pixel coordinates [R] -> rays [R]."""
        n = x.shape[0]
        local = self._lenses.through(values[_POSE + _EXTRA :], x, y)
        pose = values[:_POSE].reshape(3, 4, -1)
        directions = _rotate(pose, local)
        near, far, time = values[_POSE : _POSE + _EXTRA].expand(_EXTRA, n).contiguous().unbind(0)
        origins = pose[:, 3].t().expand(n, 3).contiguous()
        return Rays(origins, directions, near, far, time if self.dynamic else None)


def _reduced(camera: Camera, factor: int) -> Camera:
    return replace(
        camera,
        width=camera.width // factor,
        height=camera.height // factor,
        fx=camera.fx / factor,
        fy=camera.fy / factor,
        cx=camera.cx / factor,
        cy=camera.cy / factor,
    )


def rays_for_camera(
    camera: Camera,
    pose: np.ndarray | Tensor,
    bounds: Bounds,
    time: float | None = None,
    device: torch.device | str = "cpu",
    pixels: range | None = None,
) -> Rays:
    """The rays of a camera at a camera-to-world pose [3, 4], row by row; `time` in 0..1 for a dynamic scene.

    pixels: a range of the H*W pixels, for a large picture that is rendered in pieces; None makes all rays.
    """
    table = CameraTable.build([camera], device)
    x, y = _pixel_centres(camera, torch.device(device), pixels)
    matrix = torch.as_tensor(pose).to(device=device, dtype=torch.float32)
    directions = _rotate(matrix[:, :, None], table.through(table.values, x, y))
    n = x.shape[0]
    return Rays(
        matrix[:, 3].expand(n, 3).contiguous(),
        directions,
        torch.full((n,), bounds.near, device=device),
        torch.full((n,), bounds.far, device=device),
        None if time is None else torch.full((n,), float(time), device=device),
    )


def _rotate(pose: Tensor, local: Tensor) -> Tensor:
    """Poses [3, 4, R or 1] applied to camera-frame directions [3, R] -> world directions [R, 3].

    Each column is a separate product, so that no tensor of a training batch exceeds 32,768 elements. Above that size
    torch uses several threads: beside another busy process on 2 cores that costs 12 ms an operation instead of 10 us
    (4,096 rays).
    """
    return (pose[:, 0] * local[0] + pose[:, 1] * local[1] + pose[:, 2] * local[2]).t().contiguous()


def _pixel_centres(camera: Camera, device: torch.device, pixels: range | None = None) -> tuple[Tensor, Tensor]:
    """x, y [n] float32 of a range of pixels, row by row; of all H*W pixels if it is None."""
    span = range(camera.height * camera.width) if pixels is None else pixels
    index = torch.arange(span.start, span.stop, device=device)
    return (index % camera.width).float() + 0.5, (index // camera.width).float() + 0.5
