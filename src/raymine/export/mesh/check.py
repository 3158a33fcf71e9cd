"""Compare a mesh file with the field it was made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from raymine.export.frames import render_view
from raymine.export.model import ExportModel, Placement, shrunk
from raymine.export.paths import novel_camera

from .extract import Mesh
from .write import read_mesh

_VERTICES = 20_000
_REACH, _STEPS = 3.0, 12


@dataclass(frozen=True)
class MeshCheck:
    """distance: mean distance of vertices from where the density crosses the threshold, in cells of the grid.
    crossing: share of the vertices that have a crossing within 3 cells along their normal. psnr: in dB, pictures of the
    mesh against renderings of the field, where it has colours.
    """

    distance: float
    crossing: float
    psnr: float | None


def check_mesh(
    path: Path, model: ExportModel, placement: Placement, level: float, cell: float, *, pictures: int = 4
) -> MeshCheck:
    """Read a written mesh and compare it with the model. level: raw density of the surface. cell: normalised."""
    found = read_mesh(path)
    mesh = Mesh(
        placement.back(found.vertices),
        found.faces,
        found.normals @ placement.rotation,
        uv=found.uv,
        texture=found.texture,
    )
    offsets = crossings(model, mesh, level, cell)
    near = np.isfinite(offsets)
    distance = float(np.abs(offsets[near]).mean()) if near.any() else math.inf
    psnr = None if mesh.texture is None else mesh_psnr(model, mesh, pictures)
    return MeshCheck(distance, float(near.mean()), psnr)


def crossings(model: ExportModel, mesh: Mesh, level: float, cell: float) -> np.ndarray:
    """Signed distance, in cells, from vertices to the nearest crossing of `level` along the normal; NaN: none near."""
    rows = np.linspace(0, len(mesh.vertices) - 1, min(_VERTICES, len(mesh.vertices))).round().astype(int)
    start, normal = (torch.from_numpy(values[rows]).float() for values in (mesh.vertices, mesh.normals))
    along = torch.linspace(-_REACH, _REACH, 2 * _STEPS + 1)
    values = torch.stack([model.raw_density(start + normal * float(t) * cell).cpu() - level for t in along])
    values = torch.where(values.isfinite(), values, -1.0)
    change = (values[:-1] > 0) != (values[1:] > 0)
    share = values[:-1] / (values[:-1] - values[1:])
    place = torch.where(change, along[:-1, None] + share * (along[1] - along[0]), torch.inf)
    best = place.abs().argmin(0)
    chosen = place[best, torch.arange(len(rows))]
    return torch.where(chosen.isfinite(), chosen, torch.nan).numpy()


def mesh_psnr(model: ExportModel, mesh: Mesh, count: int) -> float:
    """Pictures of the mesh against renderings of the field, from training views, over white, in dB."""
    from .triangles import picture

    white, errors = (1.0, 1.0, 1.0), []
    for view in model.spread_views(count):
        camera = shrunk(novel_camera(model.views[view]), 400)
        options = {"background": white, "time": model.time, "device": model.device}
        truth = render_view(model.renderer, camera, model.poses[view], model.scene.bounds, **options)  # type: ignore[arg-type]
        drawn, _ = picture(mesh, camera, model.poses[view], white)
        errors.append(float(np.square(drawn - truth.colour).mean()))
    return -10 * math.log10(max(1e-12, float(np.mean(errors))))
