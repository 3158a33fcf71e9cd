"""The rasteriser of triangles."""

from __future__ import annotations

import numpy as np
import pytest

from raymine.contracts import Camera
from raymine.export.mesh.extract import Mesh
from raymine.export.mesh.triangles import cover, picture, sample


def test_nearest_triangle_covers_a_pixel_with_weights_in_space() -> None:
    far = [[0, 0, 0.1], [8, 0, 0.1], [0, 8, 0.1]]
    near = [[0, 0, 1.0], [4, 0, 0.5], [0, 4, 0.5]]
    behind = [[0, 0, 1.0], [9, 0, -1.0], [0, 9, 1.0]]
    face, weights = cover(np.array([far, near, behind], float), 8, 8)
    assert face[0, 0] == 1
    assert face[0, 5] == 0
    assert face[7, 7] == -1
    # The centre of pixel (0, 0) has the weights 0.75, 0.125, 0.125 in the picture; 1/depth is 0.875 there.
    assert np.allclose(weights[0, 0], [0.75 / 0.875, 0.0625 / 0.875, 0.0625 / 0.875], atol=1e-6)


def test_picture_shows_the_colours_of_a_square() -> None:
    corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], float)
    faces = np.array([[0, 1, 2], [0, 2, 3]])
    up = np.tile([0.0, 0.0, 1.0], (4, 1))
    texture = np.zeros((2, 2, 3), np.uint8)
    texture[0, :, 0], texture[1, :, 1] = 255, 255  # red above, green below
    mesh = Mesh(corners, faces, up, uv=corners[:, :2] / 2 + 0.5, texture=texture)
    pose = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 4.0]])
    colour, hit, depth = picture(mesh, Camera(16, 16, 16.0, 16.0, 8.0, 8.0), pose, (0.0, 0.0, 1.0))
    assert hit.sum() == 64
    assert depth[8, 8] == pytest.approx(4.0, abs=0.01)
    assert depth[0, 0] == 0
    assert np.allclose(colour[4, 8], [1, 0, 0])
    assert np.allclose(colour[11, 8], [0, 1, 0])
    assert np.allclose(colour[0, 0], [0, 0, 1])
    assert np.allclose(sample(texture, np.array([[0.5, 0.5]])), [[0.5, 0.5, 0]])
