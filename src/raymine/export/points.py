"""A point cloud of the surface that the training cameras see: positions, normals, colours, as PLY."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from raymine.errors import ConfigError, option

from .model import ExportModel, Placement
from .ply import read_ply, write_ply
from .splats.place import Surface, gather, require_longest

MOST = 20_000_000

_LAYOUT = [(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")] + [(n, "u1") for n in ("red", "green", "blue")]


@dataclass(frozen=True)
class PointsConfig:
    """count: most points. views, longest: most training views to trace, and their longer side in pixels."""

    count: int = 500_000
    views: int = 50
    longest: int = 400

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST:
            raise ConfigError(f"{option('count')} must be between 1 and {MOST}, got {self.count}.")
        require_longest(self.longest)


@dataclass(frozen=True, eq=False)
class Points:
    """points and normals [n, 3] float64, colours [n, 3] float32 in 0..1."""

    points: np.ndarray
    normals: np.ndarray
    colours: np.ndarray


def make_points(model: ExportModel, surface: Surface, count: int) -> Points:
    """At most `count` points of traced hits, evenly spread in pixels, in the normalised world.

    Each is the mean of the hits in a cube. Its normal is opposite to the gradient of the density, and is turned towards
    the cameras that saw it.
    """
    side, cube, found = gather(surface, count)
    total = torch.bincount(cube, minlength=found).float()[:, None]

    def mean(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(found, values.shape[1]).index_add_(0, cube, values) / total

    points, colours, towards = mean(surface.points), mean(surface.colours), mean(surface.directions)
    normals = model.normals(points.to(model.device), float(side.median())).cpu().nan_to_num()
    away = (normals * towards).sum(1, keepdim=True) > 0
    normals = torch.where(away, -normals, normals)
    return Points(points.double().numpy(), normals.double().numpy(), colours.clamp(0, 1).numpy())


def write_points(path: Path, points: Points, placement: Placement) -> None:
    """Write points as PLY: x y z, nx ny nz, red green blue."""
    rows = np.empty(len(points.points), np.dtype(_LAYOUT))
    for axis, name in enumerate("xyz"):
        rows[name] = placement.points(points.points)[:, axis]
        rows[f"n{name}"] = placement.vectors(points.normals)[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        rows[name] = (np.clip(points.colours[:, channel], 0, 1) * 255 + 0.5).astype(np.uint8)
    write_ply(path, rows, ("point cloud, written by raymine",))


def read_points(path: Path) -> Points:
    """Read back what `write_points` wrote."""
    rows = read_ply(path)
    if not {"x", "nx", "red"} <= set(rows.dtype.names or ()):
        raise ConfigError(f"{path} has no points with normals and colours.")

    def columns(*names: str) -> np.ndarray:
        return np.stack([rows[name].astype(np.float64) for name in names], -1)

    colours = (columns("red", "green", "blue") / 255).astype(np.float32)
    return Points(columns("x", "y", "z"), columns("nx", "ny", "nz"), colours)
