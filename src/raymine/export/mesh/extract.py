"""A triangle mesh of a field: values on a grid, marching cubes, cleaning, and fewer faces.

The values are fused distances (`fuse`) or the density before its activation, which is about its logarithm. Density
itself rises by orders of magnitude within a cell, and a crossing found by linear interpolation would lie at the cell's
outer end.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raymine.contracts import Rays, activations_of
from raymine.errors import ConfigError, MissingExtraError, RunError, option
from raymine.export.model import Box, ExportModel, Progress, no_progress

_REACH = 8.0
"""Raw densities are cut off this far from the threshold, so that untrained space does not pull on the crossing."""

_SPECK = 0.005
"""A component with less than this share of the surface is removed."""


_RAYS = 20_000
"""Rays of training views that decide the threshold."""


@dataclass(frozen=True)
class MeshConfig:
    """resolution: points of the grid along the longest side of the box. threshold: density of the surface, per
    normalised unit; None takes the surface that training views see (`fuse`) in an unbounded scene, and derives it from
    what training rays meet (`choose_threshold`) in a bounded one. faces: most triangles. texture: side of the texture
    in pixels; 0 gives colours to vertices instead.
    """

    resolution: int = 256
    threshold: float | None = None
    faces: int = 50_000
    texture: int = 2048

    def __post_init__(self) -> None:
        if not 16 <= self.resolution <= 768:
            raise ConfigError(f"{option('resolution')} must be between 16 and 768, got {self.resolution}.")
        if self.threshold is not None and not 0 < self.threshold < 1e7:
            raise ConfigError(f"{option('threshold')} is a density, above 0 and below 10000000, got {self.threshold}.")
        if not 100 <= self.faces <= 20_000_000:
            raise ConfigError(
                f"{option('faces')} must be between 100 and 20000000, got {self.faces}.",
                hint="A mesh of fewer faces shows nothing.",
            )
        if self.texture and not 64 <= self.texture <= 8192:
            raise ConfigError(f"{option('texture')} must be 0 or between 64 and 8192 pixels, got {self.texture}.")


@dataclass(frozen=True, eq=False)
class Mesh:
    """vertices [n, 3] float64 and faces [m, 3] int64, counter-clockwise seen from outside; normals [n, 3], unit.

    colours [n, 3] float32 in 0..1, or `uv` [n, 2] and `texture` [H, W, 3] uint8 whose first row has v = 1.
    """

    vertices: np.ndarray
    faces: np.ndarray
    normals: np.ndarray
    colours: np.ndarray | None = None
    uv: np.ndarray | None = None
    texture: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Grid:
    """Raw density [X, Y, Z], or a distance (`fuse`), at the points of a grid over a box, and the side of its cells.

    observed [X, Y, Z] bool: points that some view sees; None where that is not known.
    """

    values: np.ndarray
    box: Box
    cell: float
    observed: np.ndarray | None = None

    def points(self, index: np.ndarray) -> np.ndarray:
        """Grid coordinates [n, 3] -> normalised points [n, 3]."""
        return self.box.points(index / (np.array(self.values.shape) - 1))


def require(module: str) -> Any:
    """Import a package of the extra `mesh`, or raise `MissingExtraError`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        names = {"skimage": "scikit-image", "fast_simplification": "fast-simplification"}
        top = module.partition(".")[0]
        raise MissingExtraError(names.get(top, top), "mesh", "Exporting a mesh") from error


def sample_grid(model: ExportModel, box: Box, resolution: int, progress: Progress = no_progress) -> Grid:
    """The raw density on a grid over `box`; -inf outside of the occupied cells, where the field was never trained."""
    cell = float(box.sides.max()) / (resolution - 1)
    shape = [max(2, int(np.ceil(side / cell - 1e-6)) + 1) for side in box.sides]
    values = np.full(shape, -np.inf, np.float32)
    y, z = np.meshgrid(np.arange(shape[1]), np.arange(shape[2]), indexing="ij")
    steps = np.array(shape) - 1
    for i in range(shape[0]):
        unit = np.stack((np.full(y.size, i), y.ravel(), z.ravel()), -1) / steps
        points = torch.from_numpy(box.points(unit)).float().to(model.device)
        inside = model.occupied(points).nonzero()[:, 0]
        if len(inside):
            values[i].reshape(-1)[inside.cpu().numpy()] = model.raw_density(points[inside]).cpu().numpy()
        progress("Sampling density", i + 1, shape[0])
    return Grid(values, box, cell)


def choose_threshold(model: ExportModel, box: Box) -> float:
    """The raw density of the surface: half of the density that 98 % of the training rays meet where they hit.

    A ray hits where half of its opacity is reached. A higher threshold leaves holes where the field is less dense, as
    it is in shiny things; a lower one makes the surface thicker.
    """
    views = list(model.spread_views(16))
    found = []
    for view in views:
        camera, rays = model.view_rays(view, 256)
        every = max(1, len(rays) * len(views) // _RAYS)
        time = None if rays.time is None else rays.time[::every]
        some = Rays(rays.origins[::every], rays.directions[::every], rays.near[::every], rays.far[::every], time)
        hits = model.trace(some, 3.0 / camera.fx)
        found.append(hits.points[(hits.opacity > 0.5) & (hits.share > 0.7) & box.contains(hits.points)])
    points = torch.cat(found)
    if len(points) < 16:
        raise RunError(
            "The field is empty: almost no ray of the training views meets anything opaque in the box.",
            hint="Train the run for longer, or give another box.",
        )
    low = float(model.density(points).quantile(0.02))
    return raw_of(model, max(0.5 * low, 1e-3))


def raw_of(model: ExportModel, density: float) -> float:
    """The raw density at which the density is `density`, by bisection: activations ascend."""
    activate = activations_of(model.field).density
    low, high = -100.0, 100.0 + density
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(activate(torch.tensor(middle))) < density else (low, middle)
    return 0.5 * (low + high)


def extract(grid: Grid, level: float, seen: np.ndarray | None = None, progress: Progress = no_progress) -> Mesh:
    """The surface where the values are `level`, without cavities and specks. `RunError` if there is none.

    A grid of densities gives a closed surface. seen [X, Y, Z] bool: points that cameras see as empty
    (`carve.seen_empty`). Empty regions of other points that do not reach the border are cavities. They are filled:
    inside of solid things the field is arbitrary.

    A grid with `observed` points gives the surface between those points alone, open where no view looked.
    """
    measure = require("skimage.measure")
    progress("Marching cubes", 0, 1)
    values = np.clip(np.nan_to_num(grid.values, nan=-np.inf), level - _REACH, level + _REACH)
    if grid.observed is None:
        values = np.pad(_filled(values, level, seen), 1, constant_values=level - _REACH)
    if not values.min() < level < values.max():
        raise _nothing()
    vertices, faces, _, _ = measure.marching_cubes(values, level, gradient_direction="ascent")
    if grid.observed is None:
        vertices -= 1.0
    else:
        # A vertex lies on an edge of the grid.
        ends = (np.floor(vertices).astype(int), np.ceil(vertices).astype(int))
        known = grid.observed[tuple(ends[0].T)] & grid.observed[tuple(ends[1].T)]
        faces = faces[known[faces].all(1)]
    if not len(faces):
        raise _nothing()
    vertices, faces = without_specks(vertices.astype(np.float64), faces.astype(np.int64))
    progress("Marching cubes", 1, 1)
    placed = grid.points(vertices)
    return Mesh(placed, faces, vertex_normals(placed, faces))


def _nothing() -> RunError:
    return RunError(
        "The field is empty: it has no surface in the box, or none of the density that was asked for.",
        hint=f"Train the run for longer, or give a lower {option('threshold')} or another {option('box')}.",
    )


def _filled(values: np.ndarray, level: float, seen: np.ndarray | None) -> np.ndarray:
    """The values with cavities made solid (see `extract`)."""
    ndimage = require("scipy.ndimage")
    hidden = values < level
    if seen is not None:
        # Rays are a few cells apart.
        hidden = hidden & ~ndimage.binary_dilation(seen, iterations=2)
    labels, count = ndimage.label(hidden)
    keep = np.zeros(count + 1, bool)
    keep[0] = True
    for axis in range(3):
        for end in (0, -1):
            keep[np.unique(labels.take(end, axis))] = True
    return np.where(keep[labels], values, level + _REACH)


def without_specks(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mesh without small components and unused vertices."""
    sparse, graph = require("scipy.sparse"), require("scipy.sparse.csgraph")
    edges = np.concatenate((faces[:, :2], faces[:, 1:]))
    n = len(vertices)
    links = sparse.coo_matrix((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), (n, n))
    _, component = graph.connected_components(links, directed=False)
    corners = vertices[faces]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    total = np.bincount(component[faces[:, 0]], weights=area, minlength=component.max() + 1)
    large = total >= min(_SPECK * total.sum(), total.max())
    return used_vertices(vertices, faces[large[component[faces[:, 0]]]])


def used_vertices(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mesh without vertices that no face has."""
    used, index = np.unique(faces, return_inverse=True)
    return vertices[used], index.reshape(-1, 3).astype(np.int64)


def decimate(mesh: Mesh, faces: int, progress: Progress = no_progress) -> Mesh:
    """The mesh with at most about `faces` triangles, by edge collapses that keep its shape."""
    if len(mesh.faces) <= faces:
        return mesh
    progress("Decimating", 0, 1)
    simplify = require("fast_simplification").simplify
    share = 1.0 - faces / len(mesh.faces)
    points, found = simplify(mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32), target_reduction=share)
    # Collapses separate parts of the surface.
    points, found = without_specks(points.astype(np.float64), _proper(points, found))
    progress("Decimating", 1, 1)
    return Mesh(points, found, vertex_normals(points, found))


def _proper(points: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """The faces that have an area."""
    corners = points[faces].astype(np.float64)
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    return faces[area > 0].astype(np.int64)


def vertex_normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Unit normals [n, 3]: those of the faces around a vertex, weighted by their area."""
    corners = vertices[faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    total = np.stack(
        [np.bincount(faces.ravel(), np.repeat(normal[:, axis], 3), len(vertices)) for axis in range(3)], -1
    )
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.where(length > 0, total / np.maximum(length, 1e-300), (0.0, 0.0, 1.0))
