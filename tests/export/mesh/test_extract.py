"""Meshes of known densities: a ball, a hollow ball, and the shapes of the built-in scene."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from raymine.errors import ConfigError, RunError
from raymine.export.mesh.carve import seen_empty
from raymine.export.mesh.extract import (
    Grid,
    Mesh,
    MeshConfig,
    choose_threshold,
    decimate,
    extract,
    raw_of,
    sample_grid,
)
from raymine.export.model import Box, box_of
from support.export_models import RADIUS, DistanceField, ball_model, empty_model, model_of


def volume(mesh: Mesh) -> float:
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    return float((a * np.cross(b, c)).sum() / 6)


def pieces(mesh: Mesh) -> int:
    edges = np.concatenate((mesh.faces[:, :2], mesh.faces[:, 1:]))
    links = coo_matrix((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), (len(mesh.vertices),) * 2)
    return int(connected_components(links, directed=False)[0])


def test_ball_is_extracted_where_its_density_crosses_and_faces_outwards() -> None:
    model = ball_model()
    box = box_of(model.scene, None, "scene")
    grid = sample_grid(model, box, 64)
    mesh = extract(grid, 4.0, seen_empty(model, box, grid.values.shape, grid.cell))
    assert np.abs(np.linalg.norm(mesh.vertices, axis=1) - RADIUS).mean() < 0.02 * grid.cell
    assert volume(mesh) == pytest.approx(4 / 3 * np.pi * RADIUS**3, rel=0.02)
    assert (mesh.normals * mesh.vertices).sum(1).min() > 0
    few = decimate(mesh, 500)
    assert 300 < len(few.faces) <= 510
    assert volume(few) == pytest.approx(volume(mesh), rel=0.02)


def test_threshold_follows_from_what_rays_meet() -> None:
    model = ball_model()
    box = box_of(model.scene, None, "scene")
    level = choose_threshold(model, box)
    mesh = extract(sample_grid(model, box, 64), level)
    assert np.abs(np.linalg.norm(mesh.vertices, axis=1) - RADIUS).mean() < 0.05
    assert raw_of(model, 1.0) == pytest.approx(1.0)
    with pytest.raises(RunError, match="The field is empty"):
        choose_threshold(empty_model(), box)


def test_surface_is_open_where_nothing_was_observed() -> None:
    steps = np.linspace(-1, 1, 40)
    x, y, z = np.meshgrid(steps, steps, steps, indexing="ij")
    values = 0.6 - np.sqrt(x**2 + y**2 + z**2)
    grid = Grid(values, Box.between(np.full(3, -1.0), np.full(3, 1.0)), 2 / 39, observed=z > 0)
    mesh = extract(grid, 0.0)
    assert mesh.vertices[:, 2].min() > 0
    assert np.abs(np.linalg.norm(mesh.vertices, axis=1) - 0.6).max() < 0.01
    with pytest.raises(RunError, match="no surface in the box"):
        extract(Grid(values, grid.box, grid.cell, observed=np.zeros_like(values, bool)), 0.0)


def test_pieces_that_decimation_separates_are_removed() -> None:
    steps = np.linspace(-1, 1, 48)
    x, y, z = np.meshgrid(steps, steps, steps, indexing="ij")
    noise = np.random.default_rng(0).normal(size=x.shape)
    values = 20 * (0.6 - np.sqrt(x**2 + y**2 + z**2)) + 2 * noise
    whole = extract(Grid(values, Box.between(np.full(3, -1.0), np.full(3, 1.0)), 2 / 47), 0.0)
    few = decimate(whole, 400)
    assert len(few.faces) <= 400
    assert pieces(few) <= 3


def test_cavities_are_filled_and_specks_removed() -> None:
    steps = np.linspace(-1, 1, 48)
    x, y, z = np.meshgrid(steps, steps, steps, indexing="ij")
    radius = np.sqrt(x**2 + y**2 + z**2)
    values = np.where((radius < 0.7) & (radius > 0.4), 5.0, -5.0)
    values[2:4, 2:4, 2:4] = 5.0
    mesh = extract(Grid(values, Box.between(np.full(3, -1.0), np.full(3, 1.0)), 2 / 47), 0.0)
    assert np.linalg.norm(mesh.vertices, axis=1).min() > 0.6
    assert np.linalg.norm(mesh.vertices, axis=1).max() < 0.8


def test_hollow_behind_a_hole_is_filled_where_no_camera_sees_it() -> None:
    values = np.full((24, 24, 24), -5.0)
    values[4:20, 4:20, 4:20] = 5.0
    values[6:18, 6:18, 6:18] = -5.0
    values[10, 10, 4:6] = -5.0
    seen = np.zeros(values.shape, bool)
    seen[:, :, :4] = True
    seen[10, 10, 4:6] = True
    grid = Grid(values, Box.between(np.zeros(3), np.full(3, 23.0)), 1.0)
    deepest = [extract(grid, 0.0, mask).vertices[:, 2] for mask in (None, seen)]
    # Without the mask the inner walls of the hollow remain.
    assert ((deepest[0] > 9) & (deepest[0] < 15)).mean() > ((deepest[1] > 9) & (deepest[1] < 15)).mean()
    assert abs(volume(extract(grid, 0.0, seen))) > abs(volume(extract(grid, 0.0, None))) + 1000


def test_empty_grid_is_refused() -> None:
    model = empty_model()
    grid = sample_grid(model, box_of(model.scene, None, "scene"), 16)
    with pytest.raises(RunError, match="no surface in the box"):
        extract(grid, 4.0)


@pytest.mark.parametrize(
    "wrong", [{"resolution": 8}, {"threshold": 0.0}, {"faces": 3}, {"texture": 3}, {"texture": 100_000}]
)
def test_impossible_budgets_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(wrong))}`"):
        MeshConfig(**wrong)  # type: ignore[arg-type]


def test_mesh_of_the_built_in_shapes_lies_on_them() -> None:
    """A field that has the analytic surfaces of the built-in scene: mean distance far below 1 % of its size, 2.2."""
    import numba

    from raymine.scenes.builtin.shapes import N_PARTS, nearest

    @numba.njit
    def distances(points: np.ndarray) -> np.ndarray:
        out = np.empty(len(points))
        for i in range(len(points)):
            out[i] = nearest((1 << N_PARTS) - 1, points[i, 0], points[i, 1], points[i, 2])[0]
        return out

    def distance(points: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(distances(points.double().numpy())).float()

    model = model_of(DistanceField(distance))
    grid = sample_grid(model, box_of(model.scene, (-1.2, -1.2, -1.0, 1.2, 1.2, 1.0), "scene"), 97)
    mesh = decimate(extract(grid, 4.0), 40_000)
    assert len(mesh.faces) <= 40_010
    assert np.abs(distances(mesh.vertices)).mean() < 0.002 * 2.2
