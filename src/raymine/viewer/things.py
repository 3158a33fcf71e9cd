"""What can be shown beside the rendering: cameras with their photos, occupied cells, the crop box."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from raymine.contracts import Renderer
from raymine.quantities import spread
from raymine.samplers import OccupancySampler
from raymine.toolkit.occupancy_update import above_limit, grid_coordinates

from .camera import orientation_of, vertical_fov
from .draw import Box
from .photos import Photos

if TYPE_CHECKING:
    import viser

MOST_CAMERAS = 150
MOST_POINTS = 60_000
THUMBNAIL = 160
"""Pixels of the longer side of a photo in a frustum."""


def frustum_scale(poses: np.ndarray) -> float:
    """A size of frustums at which cameras [n, 3, 4] can be told apart: a share of how far they are spread."""
    positions = poses[:, :, 3]
    reach = float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).mean())
    return max(1e-3, 0.06 * reach) if reach > 0 else 0.1


def thumbnail(image: np.ndarray) -> np.ndarray:
    """An image [H, W, 3 or 4] uint8 -> [h, w, 3] uint8, small: every k-th pixel, over white."""
    stride = max(1, -(-max(image.shape[:2]) // THUMBNAIL))
    small = image[::stride, ::stride]
    if small.shape[-1] == 3:
        return np.ascontiguousarray(small)
    alpha = small[..., 3:].astype(np.float32) / 255.0
    return (small[..., :3] * alpha + 255.0 * (1.0 - alpha) + 0.5).astype(np.uint8)


def occupied_points(renderer: Renderer) -> np.ndarray | None:
    """Centres [n, 3] of occupied cells, at most `MOST_POINTS`; None without an occupancy grid."""
    sampler = getattr(renderer, "sampler", None)
    if not isinstance(sampler, OccupancySampler) or not sampler.swept:
        return None
    side, bounds = sampler.config.resolution, sampler.bounds
    low, high = np.array(bounds.low), np.array(bounds.high)
    found = []
    for level, values in enumerate(sampler.values):
        cells = above_limit(values, sampler.config.threshold).nonzero()[:, 0]
        unit = (grid_coordinates(cells, (side, side, side)).cpu().numpy() + 0.5) * (2.0 / side) - 1.0
        found.append((low + high) / 2 + unit * (high - low) * (0.5 * 2**level))
    points = np.concatenate(found)
    return points[spread(len(points), MOST_POINTS)].astype(np.float32)


def box_lines(box: Box) -> np.ndarray:
    """The twelve edges of a box as segments [12, 2, 3]."""
    corners = np.array([[box[i >> axis & 1][axis] for axis in range(3)] for i in range(8)])
    edges = [(i, i | 1 << axis) for i in range(8) for axis in range(3) if not i >> axis & 1]
    return corners[np.array(edges)].astype(np.float32)


class Things:
    """The objects in viser's scene. Each is made when it is first shown, and removed when it is hidden."""

    def __init__(self, server: viser.ViserServer, photos: Photos) -> None:
        self._server, self._photos = server, photos
        self._cameras: list[Any] = []
        self._points: Any = None
        self._box: Any = None

    def show_cameras(self, shown: bool, with_photos: bool) -> None:
        """Show or hide the training cameras. A click on one moves the view there."""
        for handle in self._cameras:
            handle.remove()
        self._cameras = []
        if not shown or not self._photos.trained:
            return
        scene, trained = self._photos.scene, self._photos.trained
        scale = frustum_scale(np.stack([scene.frames[i].pose for i in trained]))
        for place in spread(len(trained), MOST_CAMERAS):
            frame = scene.frames[trained[place]]
            camera = scene.cameras[frame.camera]
            wxyz, position = orientation_of(frame.pose)
            handle = self._server.scene.add_camera_frustum(
                f"/cameras/{place}",
                fov=vertical_fov(camera),
                aspect=camera.width / camera.height,
                scale=scale,
                color=(47, 134, 209),
                thickness=1.5,
                thickness_units="screen",
                image=thumbnail(self._photos.images.image(place)) if with_photos else None,
                wxyz=wxyz,
                position=position,
            )
            handle.on_click(_jump(wxyz, position, vertical_fov(camera)))
            self._cameras.append(handle)

    def show_points(self, points: np.ndarray | None) -> None:
        """Show the centres of occupied cells; None hides them."""
        if self._points is not None:
            self._points.remove()
            self._points = None
        if points is not None and len(points):
            size = 0.004 * float(np.ptp(points, axis=0).max())
            self._points = self._server.scene.add_point_cloud(
                "/occupancy", points, colors=(224, 123, 0), point_size=max(size, 1e-4), point_shape="square"
            )

    def show_box(self, box: Box | None) -> None:
        """Show the crop box; None hides it."""
        if self._box is not None:
            self._box.remove()
            self._box = None
        if box is not None:
            colours = np.full((12, 2, 3), (213, 72, 95), dtype=np.uint8)
            self._box = self._server.scene.add_line_segments(
                "/crop", box_lines(box), colors=colours, thickness=2.0, thickness_units="screen"
            )


def _jump(wxyz: np.ndarray, position: np.ndarray, fov: float) -> Callable[[Any], None]:
    def jump(event: Any) -> None:
        client = event.client
        if client is not None:
            with client.atomic():
                client.camera.wxyz, client.camera.position, client.camera.fov = wxyz, position, fov

    return jump
