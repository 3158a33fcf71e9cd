"""A small ray tracer for the built-in scene, in Numba.

Distances are first tabled on a grid. Far from a surface a ray steps by the table; near one it evaluates only the parts
that the table says can be nearest there. Shadows and ambient light use the table alone: both are smooth functions of
the point, so every view sees the same light.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from raymine.scenes.builtin.paint import LIGHT, encode, shade
from raymine.scenes.builtin.shapes import N_PARTS, NOTHING, inlined, nearest, part_distance
from raymine.scenes.builtin.source import generator_digest

CELL = 0.025
LOW = (-1.2, -1.2, -1.0)
SHAPE = (96, 96, 80)
HIGH = (LOW[0] + CELL * SHAPE[0], LOW[1] + CELL * SHAPE[1], LOW[2] + CELL * SHAPE[2])
REACH = 0.5 * CELL * math.sqrt(3.0)  # from a cell's centre to its corner

Vector = tuple[float, float, float]


@inlined
def _fill(distance: np.ndarray, parts: np.ndarray) -> None:
    """Tables, per cell [X, Y, Z]: the distance at its centre and the bits of the parts that may be nearest in it."""
    each = np.empty(N_PARTS)
    for i in range(distance.shape[0]):
        for j in range(SHAPE[1]):
            for k in range(SHAPE[2]):
                x, y, z = LOW[0] + (i + 0.5) * CELL, LOW[1] + (j + 0.5) * CELL, LOW[2] + (k + 0.5) * CELL
                best = 1e9
                for part in range(N_PARTS):
                    each[part] = part_distance(part, x, y, z)
                    best = min(best, each[part])
                bits = 0
                for part in range(N_PARTS):
                    # Moving to any point of the cell changes each distance by at most REACH.
                    if each[part] <= best + 2.0 * REACH:
                        bits |= 1 << part
                distance[i, j, k] = best
                parts[i, j, k] = bits


@inlined
def _table_distance(distance: np.ndarray, x: float, y: float, z: float) -> float:
    """The tabled distance, interpolated linearly; points outside take the nearest value inside."""
    u = min(max((x - LOW[0]) / CELL - 0.5, 0.0), SHAPE[0] - 1.001)
    v = min(max((y - LOW[1]) / CELL - 0.5, 0.0), SHAPE[1] - 1.001)
    w = min(max((z - LOW[2]) / CELL - 0.5, 0.0), SHAPE[2] - 1.001)
    i, j, k = int(u), int(v), int(w)
    u, v, w = u - i, v - j, w - k
    d00 = distance[i, j, k] * (1.0 - w) + distance[i, j, k + 1] * w
    d01 = distance[i, j + 1, k] * (1.0 - w) + distance[i, j + 1, k + 1] * w
    d10 = distance[i + 1, j, k] * (1.0 - w) + distance[i + 1, j, k + 1] * w
    d11 = distance[i + 1, j + 1, k] * (1.0 - w) + distance[i + 1, j + 1, k + 1] * w
    return (d00 * (1.0 - v) + d01 * v) * (1.0 - u) + (d10 * (1.0 - v) + d11 * v) * u


@inlined
def _cross_box(o: Vector, d: Vector) -> tuple[float, float]:
    """Where a ray enters and leaves the tabled box; enter > leave when it misses."""
    enter, leave = 0.0, 1e9
    for axis in range(3):
        rate = d[axis] if abs(d[axis]) > 1e-12 else 1e-12
        a, b = (LOW[axis] - o[axis]) / rate, (HIGH[axis] - o[axis]) / rate
        enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
    return enter, leave


@inlined
def trace(distance: np.ndarray, parts: np.ndarray, o: Vector, d: Vector) -> tuple[float, int]:
    """(distance along the unit direction `d`, part hit) of the first surface; NOTHING when the ray meets none."""
    t, leave = _cross_box(o, d)
    t += 1e-4
    while t < leave:
        x, y, z = o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2]
        i = min(max(int((x - LOW[0]) / CELL), 0), SHAPE[0] - 1)
        j = min(max(int((y - LOW[1]) / CELL), 0), SHAPE[1] - 1)
        k = min(max(int((z - LOW[2]) / CELL), 0), SHAPE[2] - 1)
        step = distance[i, j, k] - REACH
        if step < 0.4 * CELL:
            step, part = nearest(parts[i, j, k], x, y, z)
            if step < 1e-3:
                return t, part
        t += max(step, 1e-3)
    return leave, NOTHING


@inlined
def _normal(part: int, x: float, y: float, z: float) -> Vector:
    """Unit outward normal, from the distance at the four corners of a small tetrahedron."""
    nx, ny, nz, e = 0.0, 0.0, 0.0, 1e-3
    for corner in range(4):
        sx = 1.0 if corner == 0 or corner == 3 else -1.0
        sy = 1.0 if corner == 1 or corner == 3 else -1.0
        sz = 1.0 if corner == 2 or corner == 3 else -1.0
        f = part_distance(part, x + sx * e, y + sy * e, z + sz * e)
        nx, ny, nz = nx + sx * f, ny + sy * f, nz + sz * f
    length = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-20
    return (nx / length, ny / length, nz / length)


@inlined
def _shadow(distance: np.ndarray, x: float, y: float, z: float) -> float:
    """Share of the key light that arrives: the narrowest clearance on the way, seen as an angle, softened."""
    clear, t = 1.0, 0.035
    while t < 2.0 and clear > 0.0:
        h = _table_distance(distance, x + t * LIGHT[0], y + t * LIGHT[1], z + t * LIGHT[2])
        clear = min(clear, 0.35 + 6.0 * h / t)
        t += min(max(h, 0.02), 0.2)
        if z + t * LIGHT[2] > HIGH[2]:
            break
    clear = max(clear, 0.0)
    return clear * clear * (3.0 - 2.0 * clear)


@inlined
def _open_sky(distance: np.ndarray, p: Vector, n: Vector) -> float:
    """Share of the surroundings that a point sees: how far the distance lags behind five steps outwards."""
    lost, weight = 0.0, 1.0
    for step in range(1, 6):
        h = 0.05 * step
        lag = h - _table_distance(distance, p[0] + h * n[0], p[1] + h * n[1], p[2] + h * n[2])
        lost += weight * max(lag, 0.0)
        weight *= 0.75
    return max(1.0 - 1.6 * lost, 0.12)


@inlined
def _sample(distance: np.ndarray, parts: np.ndarray, o: Vector, d: Vector) -> tuple[int, float, float, float]:
    """(part or NOTHING, encoded red, green, blue) seen along one ray."""
    t, part = trace(distance, parts, o, d)
    if part == NOTHING:
        return NOTHING, 0.0, 0.0, 0.0
    p = (o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2])
    n = _normal(part, p[0], p[1], p[2])
    shadow = 0.0
    if n[0] * LIGHT[0] + n[1] * LIGHT[1] + n[2] * LIGHT[2] > 0.0:
        shadow = _shadow(distance, p[0] + 0.01 * n[0], p[1] + 0.01 * n[1], p[2] + 0.01 * n[2])
    c = shade(part, p, n, d, shadow, _open_sky(distance, p, n))
    return part, encode(c[0]), encode(c[1]), encode(c[2])


@inlined
def _block_of_rays(
    distance: np.ndarray, parts: np.ndarray, pose: np.ndarray, focal: float, x: float, y: float, half: float, n: int
) -> tuple[int, bool, float, float, float]:
    """n x n rays through one pixel: (hits, whether all met the same part, sums of encoded colour)."""
    hits, first, same = 0, NOTHING, True
    r = g = b = 0.0
    o = (pose[0, 3], pose[1, 3], pose[2, 3])
    for s in range(n * n):
        u = (x + (s % n + 0.5) / n - half) / focal
        v = (half - y - (s // n + 0.5) / n) / focal
        dx = pose[0, 0] * u + pose[0, 1] * v - pose[0, 2]
        dy = pose[1, 0] * u + pose[1, 1] * v - pose[1, 2]
        dz = pose[2, 0] * u + pose[2, 1] * v - pose[2, 2]
        length = math.sqrt(dx * dx + dy * dy + dz * dz)
        part, cr, cg, cb = _sample(distance, parts, o, (dx / length, dy / length, dz / length))
        if s == 0:
            first = part
        same = same and part == first
        if part != NOTHING:
            hits += 1
            r, g, b = r + cr, g + cg, b + cb
    return hits, same, r, g, b


@inlined
def _render(
    distance: np.ndarray, parts: np.ndarray, pose: np.ndarray, focal: float, coarse: int, fine: int, out: np.ndarray
) -> None:
    size = out.shape[0]
    for y in range(size):
        for x in range(size):
            for n in (coarse, fine):
                hits, same, r, g, b = _block_of_rays(distance, parts, pose, focal, x, y, 0.5 * size, n)
                if same:
                    break
            if hits > 0:
                out[y, x, 0] = int(255.0 * r / hits + 0.5)
                out[y, x, 1] = int(255.0 * g / hits + 0.5)
                out[y, x, 2] = int(255.0 * b / hits + 0.5)
                out[y, x, 3] = int(255.0 * hits / (n * n) + 0.5)


@functools.cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """The two functions called from Python: fill the tables, render a view.

    Numba recompiles a cached function when its own file changes, but not when a file it calls into does. What a
    function closes over is part of its key, so `stamp`, used or not, keeps an old cache from painting a new scene.
    """
    stamp = generator_digest()

    @njit(cache=True, nogil=True, error_model="numpy")
    def fill(distance: np.ndarray, parts: np.ndarray) -> None:
        if len(stamp) > 0:
            _fill(distance, parts)

    @njit(cache=True, nogil=True, error_model="numpy")
    def paint(
        distance: np.ndarray, parts: np.ndarray, pose: np.ndarray, focal: float, coarse: int, fine: int, out: np.ndarray
    ) -> None:
        if len(stamp) > 0:
            _render(distance, parts, pose, focal, coarse, fine, out)

    return fill, paint


class Tracer:
    """Renders views of the built-in scene. Making one compiles (about 4 s, cached on disk) and fills the tables."""

    def __init__(self) -> None:
        fill, self._paint = _compiled()
        self._distance, self._parts = np.empty(SHAPE, np.float32), np.empty(SHAPE, np.int32)
        fill(self._distance[:0], self._parts[:0])
        # An empty picture compiles `paint` while the tables, which need 0.4 s, are filled beside it.
        with ThreadPoolExecutor(1) as pool:
            filled = pool.submit(fill, self._distance, self._parts)
            self._paint(self._distance, self._parts, np.eye(4), 1.0, 1, 1, np.zeros((0, 0, 4), np.uint8))
            filled.result()

    def render(self, pose: np.ndarray, focal: float, size: int, coarse: int = 2, fine: int = 3) -> np.ndarray:
        """One square view, [size, size, 4] uint8 with straight alpha.

        `pose` [4, 4] is camera-to-world (x right, y up, z backward), `focal` is in pixels. Each pixel takes
        `coarse` x `coarse` rays, and `fine` x `fine` where those met different parts, which is where edges are.
        Releases the GIL.
        """
        out = np.zeros((size, size, 4), np.uint8)
        pose = np.ascontiguousarray(pose, np.float64)
        self._paint(self._distance, self._parts, pose, float(focal), coarse, fine, out)
        return out
