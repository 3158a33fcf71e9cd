"""A rasteriser of triangles, in Numba: which triangle covers each pixel, and where in it the pixel lies.

It draws the texture atlas, where every texel needs its point on the surface, and pictures of a mesh.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from raymine.contracts import Camera

from .extract import Mesh


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def cover(corners: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Triangles [m, 3, 3] of x, y in pixels and 1/depth -> face [H, W] (-1: none), weights [H, W, 3] of its corners.

    The nearest triangle wins; a corner with 1/depth of 0 or less (behind the camera) drops its triangle. Weights are
    those in space, so attributes that vary along the surface may be interpolated with them.
    """
    face, weights = np.full((height, width), -1, np.int64), np.zeros((height, width, 3), np.float32)
    nearest = np.zeros((height, width))
    for m in range(corners.shape[0]):
        a, b, c = corners[m, 0], corners[m, 1], corners[m, 2]
        if a[2] <= 0 or b[2] <= 0 or c[2] <= 0:
            continue
        area = (b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])
        if area == 0 or not math.isfinite(area):
            continue
        left, right = max(0.0, min(a[0], b[0], c[0]) - 0.5), min(width - 1.0, max(a[0], b[0], c[0]) - 0.5)
        top, bottom = max(0.0, min(a[1], b[1], c[1]) - 0.5), min(height - 1.0, max(a[1], b[1], c[1]) - 0.5)
        for j in range(math.ceil(top), math.floor(bottom) + 1):
            for i in range(math.ceil(left), math.floor(right) + 1):
                x, y = i + 0.5, j + 0.5
                u = ((b[0] - x) * (c[1] - y) - (c[0] - x) * (b[1] - y)) / area
                v = ((c[0] - x) * (a[1] - y) - (a[0] - x) * (c[1] - y)) / area
                w = 1.0 - u - v
                if u < 0 or v < 0 or w < 0:
                    continue
                inverse = u * a[2] + v * b[2] + w * c[2]
                if inverse <= nearest[j, i]:
                    continue
                nearest[j, i] = inverse
                face[j, i] = m
                weights[j, i, 0] = u * a[2] / inverse
                weights[j, i, 1] = v * b[2] / inverse
                weights[j, i, 2] = w * c[2] / inverse
    return face, weights


class Picture(NamedTuple):
    """A mesh as a camera sees it: colour [H, W, 3] in 0..1, hit [H, W] bool: whether it covers a pixel, and depth
    [H, W]: the distance along the ray, 0 where nothing is hit.
    """

    colour: np.ndarray
    hit: np.ndarray
    depth: np.ndarray


def picture(mesh: Mesh, camera: Camera, pose: np.ndarray, background: tuple[float, float, float]) -> Picture:
    """A mesh seen by a pinhole camera at a pose [3, 4]."""
    local = (mesh.vertices - pose[:, 3]) @ pose[:, :3]
    depth = -local[:, 2]
    ahead = depth > 1e-6
    near = np.where(ahead, depth, 1.0)
    x = camera.fx * local[:, 0] / near + camera.cx
    y = camera.fy * -local[:, 1] / near + camera.cy
    placed = np.stack((x, y, np.where(ahead, 1 / near, 0.0)), -1)
    face, weights = cover(placed[mesh.faces], camera.height, camera.width)
    hit = face >= 0
    colour = np.empty((*face.shape, 3), np.float32)
    colour[...] = background
    corners = mesh.faces[face[hit]]
    if mesh.uv is not None and mesh.texture is not None:
        uv = (mesh.uv[corners] * weights[hit][..., None]).sum(1)
        colour[hit] = sample(mesh.texture, uv)
    elif mesh.colours is not None:
        colour[hit] = (mesh.colours[corners] * weights[hit][..., None]).sum(1)
    else:
        normals = (mesh.normals[corners] * weights[hit][..., None]).sum(1)
        colour[hit] = 0.5 + 0.5 * normals
    distance = np.zeros(hit.shape)
    distance[hit] = np.linalg.norm((local[corners] * weights[hit][..., None]).sum(1), axis=1)
    return Picture(colour, hit, distance)


def sample(texture: np.ndarray, uv: np.ndarray) -> np.ndarray:
    """Bilinear colours [n, 3] in 0..1 of a texture [H, W, 3] uint8 at uv [n, 2]; v is 1 in the first row."""
    height, width = texture.shape[:2]
    x, y = uv[:, 0] * width - 0.5, (1 - uv[:, 1]) * height - 0.5
    i, j = np.floor(x).astype(int), np.floor(y).astype(int)
    u, v = (x - i)[:, None], (y - j)[:, None]
    columns, rows = np.clip((i, i + 1), 0, width - 1), np.clip((j, j + 1), 0, height - 1)
    pixels = texture.astype(np.float32) / 255
    upper = pixels[rows[0], columns[0]] * (1 - u) + pixels[rows[0], columns[1]] * u
    lower = pixels[rows[1], columns[0]] * (1 - u) + pixels[rows[1], columns[1]] * u
    return upper * (1 - v) + lower * v
