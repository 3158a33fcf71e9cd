"""Fused depths of views: a ball that is sharp, fuzzy, half hidden, and one that nobody sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine.errors import RunError
from raymine.export.mesh.extract import Mesh, extract
from raymine.export.mesh.fuse import add_view, fuse
from raymine.export.model import Box
from support.export_models import RADIUS, DistanceField, ball, ball_model, empty_model, model_of

BOX = Box.between(np.full(3, -1.0), np.full(3, 1.0))


def edges_of(mesh: Mesh) -> np.ndarray:
    """[e] number of faces at every edge."""
    ends = np.sort(mesh.faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), 1)
    return np.unique(ends, axis=0, return_counts=True)[1]


def radii(mesh: Mesh) -> np.ndarray:
    return np.linalg.norm(mesh.vertices, axis=1)


def test_distances_of_one_view_are_those_of_its_depth() -> None:
    """A camera 4 cells above a grid of 5 x 5 x 9 looks down at a plane at height 4, in cells."""
    total, count = np.zeros((5, 5, 9), np.float32), np.zeros((5, 5, 9), np.uint16)
    frame = np.array([[1.0, 0, 0, -2], [0, 1, 0, -2], [0, 0, 1, -12]])
    x, y = np.meshgrid(np.arange(32) + 0.5 - 16, np.arange(32) + 0.5 - 16)
    depth = 8.0 * np.sqrt(1 + (x / 32) ** 2 + (y / 32) ** 2)
    add_view(total, count, depth, frame, np.array([32.0, 32.0, 16.0, 16.0]), 3.0)
    assert np.allclose(total[2, 2, 1:], [-3, -2, -1, 0, 1, 2, 3, 3], atol=0.02)
    assert (count[2, 2] == [0, 1, 1, 1, 1, 1, 1, 1, 1]).all()
    # Nothing is known beside the picture, and nothing was hit is as empty as far in front.
    add_view(total, count, np.full((32, 32), np.inf), frame, np.array([320.0, 320.0, 16.0, 16.0]), 3.0)
    assert (count[0, 0] <= 1).all()
    assert count[2, 2, 0] == 1
    assert total[2, 2, 0] == 3


def test_ball_seen_from_all_sides_is_closed_and_in_place() -> None:
    grid = fuse(ball_model(), BOX, 48)
    mesh = extract(grid, 0.0)
    assert np.abs(radii(mesh) - RADIUS).mean() < 0.25 * grid.cell
    assert (mesh.normals * mesh.vertices).sum(1).min() > 0
    # The cameras leave out the bottom and the top of the ball at most.
    assert (edges_of(mesh) == 2).mean() > 0.97


def test_fuzzy_field_gives_one_piece() -> None:
    """Waves of density all over the ball and within it: levels of the density have many pieces, the depths one."""

    def fuzzy(points: Tensor) -> Tensor:
        waves = torch.sin(37 * points[:, 0]) * torch.sin(41 * points[:, 1]) * torch.sin(43 * points[:, 2])
        return ball(points) + 0.08 * waves

    grid = fuse(model_of(DistanceField(fuzzy)), BOX, 48)
    mesh = extract(grid, 0.0)
    assert np.abs(radii(mesh) - RADIUS).mean() < 1.5 * grid.cell
    corners = mesh.vertices[mesh.faces]
    faces = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    turned = (faces[:, None] * mesh.normals[mesh.faces]).sum(2).min(1) < 0
    assert turned.mean() < 0.02


def test_empty_field_has_no_surface() -> None:
    grid = fuse(empty_model(), BOX, 24)
    with pytest.raises(RunError, match="The field is empty"):
        extract(grid, 0.0)
