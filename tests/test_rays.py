"""Rays of camera rigs and of single cameras."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.cameras import look_at, project
from raymine.contracts import Bounds, Camera, Frame, Scene
from raymine.rays import CameraRig, rays_for_camera

CAMERAS = (
    Camera(6, 4, 5.0, 5.5, 3.0, 2.0),
    Camera(8, 6, 7.0, 7.0, 4.2, 2.9, "opencv", (-0.1, 0.02, 0.001, -0.002, 0.0)),
    Camera(5, 5, 3.0, 3.0, 2.5, 2.5, "fisheye", (0.01, 0.0, 0.0, 0.0)),
)


def scene(times: bool = False) -> Scene:
    frames = []
    for i in range(5):
        pose = look_at(np.array([3.0, i - 2.0, 1.0]), np.zeros(3), np.array([0.0, 0.0, 1.0]))
        own = {"near": 0.5, "far": 9.0} if i == 3 else {}
        frames.append(Frame(Path(f"{i}.png"), i % 3, pose, time=i / 4 if times else None, **own))
    return Scene(Path(), "test", CAMERAS, tuple(frames), Bounds(near=0.1, far=50.0), None, np.eye(4))


def test_rays_for_camera_match_hand_computed_directions():
    camera = Camera(4, 2, 2.0, 2.0, 2.0, 1.0)
    rays = rays_for_camera(camera, np.eye(3, 4), Bounds(near=0.2, far=7.0))
    assert len(rays) == 8
    # The centre of the first pixel is (0.5, 0.5): u = -0.75, v = -0.25, and y points up.
    expected = np.array([-0.75, 0.25, -1.0]) / np.linalg.norm([-0.75, 0.25, -1.0])
    assert rays.directions[0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    # Row by row: ray 5 is pixel x = 1, y = 1.
    assert rays.directions[5].tolist() == pytest.approx(
        (np.array([-0.25, -0.25, -1.0]) / np.linalg.norm([-0.25, -0.25, -1.0])).tolist(), abs=1e-6
    )
    assert rays.near.tolist() == pytest.approx([0.2] * 8)
    assert rays.far.tolist() == [7.0] * 8
    assert rays.time is None


def test_rays_of_mixed_cameras_project_back_onto_their_pixels():
    source = scene()
    rig = CameraRig(source, [4, 0, 1, 2, 3])
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 5, (300,), generator=generator)
    x, y = torch.randint(0, 5, (300,), generator=generator), torch.randint(0, 4, (300,), generator=generator)
    rays = rig.rays_for_pixels(image, x, y)
    assert rays.origins.dtype == rays.directions.dtype == torch.float32
    assert (rays.directions.norm(dim=1) - 1).abs().max() < 1e-6
    points = (rays.origins + 2 * rays.directions).double()
    for i in range(5):
        here = image == i
        frame = source.frames[rig.frames[i]]
        xy, _ = project(CAMERAS[frame.camera], frame.pose, points[here])
        assert (xy - torch.stack([x[here] + 0.5, y[here] + 0.5], dim=1)).abs().max() < 1e-4
        assert (rays.origins[here] - torch.from_numpy(frame.pose[:, 3]).float()).abs().max() < 1e-6


def test_near_far_and_time_of_a_frame_override_the_scene():
    rig = CameraRig(scene(times=True), range(5))
    rays = rig.rays_for_pixels(torch.tensor([3, 1]), torch.tensor([0, 0]), torch.tensor([0, 0]))
    assert rays.near.tolist() == pytest.approx([0.5, 0.1])
    assert rays.far.tolist() == pytest.approx([9.0, 50.0])
    assert rays.time is not None
    assert rays.time.tolist() == pytest.approx([0.75, 0.25])
    whole = rig.rays_for_image(3)
    assert whole.time is not None
    assert set(whole.time.tolist()) == {0.75}
    assert CameraRig(scene(), [0]).rays_for_image(0).time is None


@pytest.mark.parametrize("index", range(5))
def test_image_rays_equal_pixel_rays_and_camera_rays(index: int):
    source = scene()
    rig = CameraRig(source, range(5))
    camera = rig.cameras[index]
    whole = rig.rays_for_image(index)
    assert len(whole) == camera.width * camera.height
    n = torch.arange(len(whole))
    single = rig.rays_for_pixels(torch.full_like(n, index), n % camera.width, n // camera.width)
    torch.testing.assert_close(whole.directions, single.directions, rtol=0, atol=1e-6)
    torch.testing.assert_close(whole.origins, single.origins, rtol=0, atol=0)
    alone = rays_for_camera(camera, source.frames[index].pose, source.bounds)
    torch.testing.assert_close(whole.directions, alone.directions, rtol=0, atol=1e-6)
    assert whole.near.shape == whole.far.shape == n.shape
    assert all(t.is_contiguous() for t in (whole.origins, whole.directions, whole.near, whole.far))


def test_empty_batch_or_rig_gives_no_rays():
    nothing = torch.empty(0, dtype=torch.int64)
    assert len(CameraRig(scene(), range(5)).rays_for_pixels(nothing, nothing, nothing)) == 0
    empty = CameraRig(scene(), [])
    assert len(empty) == 0
    assert len(empty.rays_for_pixels(nothing, nothing, nothing)) == 0
