"""Colours of a mesh: an atlas of its surface (xatlas), and the field's colours baked into a texture or vertices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raymine.export.model import ExportModel, Progress, no_progress

from .extract import Mesh, require

_CAMERAS = 48
"""Training cameras, evenly spread, from which those that face a point are chosen."""

_FACING = 3
"""Cameras over which the colour of a point is averaged."""

_PADDING = 2
"""Pixels between the pieces of the atlas."""

_TEXELS = 1 << 17


def with_vertex_colours(mesh: Mesh, model: ExportModel, progress: Progress = no_progress) -> Mesh:
    """The mesh with a colour for each vertex."""
    colours = seen_colours(model, mesh.vertices, mesh.normals, progress)
    return Mesh(mesh.vertices, mesh.faces, mesh.normals, colours=colours)


def with_texture(mesh: Mesh, model: ExportModel, side: int, progress: Progress = no_progress) -> Mesh:
    """The mesh, unwrapped into an atlas of about `side` x `side` pixels, with the field's colours."""
    from .triangles import cover

    progress("Unwrapping", 0, 1)
    xatlas = require("xatlas")
    atlas = xatlas.Atlas()
    atlas.add_mesh(mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32), mesh.normals.astype(np.float32))
    options = xatlas.PackOptions()
    options.resolution, options.padding, options.bilinear = side, _PADDING, True
    atlas.generate(pack_options=options)
    source, faces, uv = atlas[0]
    width, height = int(atlas.width), int(atlas.height)
    progress("Unwrapping", 1, 1)
    found = Mesh(mesh.vertices[source], faces.astype(np.int64), mesh.normals[source], uv=uv.astype(np.float64))
    flat = np.stack((found.uv[:, 0] * width, (1 - found.uv[:, 1]) * height, np.ones(len(uv))), -1)  # type: ignore[index]
    face, weights = cover(flat[found.faces], height, width)
    hit = face >= 0
    corners, share = found.faces[face[hit]], weights[hit][..., None]
    points, normals = (found.vertices[corners] * share).sum(1), (found.normals[corners] * share).sum(1)
    texture = np.zeros((height, width, 3), np.float32)
    texture[hit] = seen_colours(model, points, normals, progress)
    # Texels around a piece take the nearest colour in it, since bilinear lookups at its border read them.
    nearest = require("scipy.ndimage").distance_transform_edt(~hit, return_distances=False, return_indices=True)
    filled = texture[tuple(nearest)]
    pixels = (filled * 255 + 0.5).astype(np.uint8)
    return Mesh(found.vertices, found.faces, found.normals, uv=found.uv, texture=pixels)


def seen_colours(
    model: ExportModel, points: np.ndarray, normals: np.ndarray, progress: Progress = no_progress
) -> np.ndarray:
    """Colours [n, 3] in 0..1 of surface points [n, 3] with normals: the mean over the cameras that face them best.

    A point that no camera faces is seen along its normal.
    """
    centres = torch.from_numpy(model.poses[list(model.spread_views(_CAMERAS)), :, 3]).float()
    out = np.empty((len(points), 3), np.float32)
    for start in range(0, len(points), _TEXELS):
        at = slice(start, start + _TEXELS)
        place = torch.from_numpy(np.ascontiguousarray(points[at])).float()
        normal = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(normals[at])).float(), dim=-1)
        out[at] = _mean_colour(model, place, normal, centres).clamp(0, 1).numpy()
        progress("Baking colours", min(start + _TEXELS, len(points)), len(points))
    return out


def _mean_colour(model: ExportModel, points: Tensor, normals: Tensor, centres: Tensor) -> Tensor:
    # Cosines of all cameras by products of matrices; directions only of the chosen ones.
    distance = torch.cdist(points, centres).clamp_min(1e-9)
    cosine = (normals @ centres.T - (normals * points).sum(1, keepdim=True)) / distance
    best, index = cosine.topk(min(_FACING, len(centres)), 1)
    total, sum_ = torch.zeros(len(points), 1), torch.zeros(len(points), 3)
    for k in range(best.shape[1]):
        towards = torch.nn.functional.normalize(points - centres[index[:, k]], dim=-1)
        faces = best[:, k : k + 1] > 0
        along = torch.where(faces, towards, -normals)
        weight = torch.where(faces, best[:, k : k + 1].square(), 1e-3)
        sum_ += weight * model.colour(points, along).cpu()
        total += weight
    return sum_ / total
