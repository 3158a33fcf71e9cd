"""Compare a mesh file with the field it was made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raymine.export.model import Box, ExportModel, Placement

from .extract import Mesh
from .triangles import picture
from .write import read_mesh

_NEAR = 3.0
"""Cells: a surface that differs by more is another one."""

_LONGEST = 300


@dataclass(frozen=True)
class MeshCheck:
    """What pictures of a mesh from training views show, against the field's own of the same box.

    near: share of the pixels in which both hit something, with depths that differ by at most 3 cells of the grid.
    distance: mean difference in these, in cells. covered: share of the pixels of what the field shows that the mesh
    covers. psnr: of the colours over white, in dB, where the mesh has a texture.
    """

    near: float
    distance: float
    covered: float
    psnr: float | None


def check_mesh(
    path: Path, model: ExportModel, placement: Placement, box: Box, cell: float, *, pictures: int = 4
) -> MeshCheck:
    """Read a written mesh and compare it with the model. cell: of the grid, in normalised units."""
    found = read_mesh(path)
    mesh = Mesh(
        placement.back(found.vertices),
        found.faces,
        found.normals @ placement.rotation,
        uv=found.uv,
        texture=found.texture,
    )
    return compare(mesh, model, box, cell, pictures)


def compare(mesh: Mesh, model: ExportModel, box: Box, cell: float, count: int = 4) -> MeshCheck:
    """Compare pictures of a mesh in normalised coordinates with those of the model, from `count` training views."""
    white, errors, differences, shown, drawn_too = (1.0, 1.0, 1.0), [], [], 0, 0
    for view in model.spread_views(count):
        camera, rays = model.view_rays(view, _LONGEST)
        hits = model.trace(box.clip(rays))
        shape = (camera.height, camera.width)
        opacity, depth = (each.cpu().numpy().reshape(shape) for each in (hits.opacity, hits.depth))
        colour = hits.colour.cpu().numpy().reshape(*shape, 3).clip(0, 1) * opacity[..., None]
        drawn = picture(mesh, camera, model.poses[view], white)
        errors.append(float(np.square(drawn.colour - colour - (1 - opacity[..., None])).mean()))
        both = drawn.hit & (opacity > 0.5)
        differences.append(np.abs(drawn.depth - depth)[both] / cell)
        shown, drawn_too = shown + int((opacity > 0.5).sum()), drawn_too + int(both.sum())
    difference = np.concatenate(differences)
    near = difference <= _NEAR
    coloured = mesh.texture is not None or mesh.colours is not None
    return MeshCheck(
        near=float(near.mean()) if len(near) else 0.0,
        distance=float(difference[near].mean()) if near.any() else math.inf,
        covered=drawn_too / max(1, shown),
        psnr=-10 * math.log10(max(1e-12, float(np.mean(errors)))) if coloured else None,
    )
