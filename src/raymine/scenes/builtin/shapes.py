"""The shapes of the built-in scene as signed distance functions, in Numba.

A still life on a round plate, z up, all of it within 1.1 of the axis and between z = -0.9 and z = 0.85:
an arch of two-coloured stones with a wire lantern hanging in it, a glazed ball, a gold knot on a stem, painted blocks,
a stool on thin legs with a dotted ball, and a small tree in a pot.

Each part is a function of a point that never exceeds the true distance and changes by at most the distance moved, so
that a ray may step by it. `distance` evaluates only the parts whose bit is set in `parts`.
"""

from __future__ import annotations

import math

from numba import njit

TOP = -0.64  # height of the plate's upper face, on which everything stands

PLATE, FEET, ARCH, CAGE, ORB, BALL, KNOT, STEM, BLOCK_LOW, BLOCK_TOP, STOOL, DOTTED, POT, TRUNK, LEAVES = range(15)
N_PARTS = 15
NOTHING = -1

# For functions that only other compiled functions call: without an entry of their own from Python they compile a third
# faster (all together 3.7 s against 5.1 s). They are not cached on disk: see `builtin.tracer`, which caches the whole.
inlined = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]

ARCH_Y, ARCH_SPRING, ARCH_RADIUS, ARCH_HALF = 0.42, 0.22, 0.52, 0.095
LANTERN_Z, LANTERN_RADIUS = 0.18, 0.19
KNOT_CENTRE = (0.02, -0.18, -0.14)
BALL_CENTRE, BALL_RADIUS = (-0.5, -0.36, TOP + 0.27), 0.27
BLOCK_LOW_CENTRE, BLOCK_LOW_HALF, BLOCK_LOW_YAW = (0.52, -0.46, TOP + 0.16), 0.16, 0.45
BLOCK_TOP_CENTRE, BLOCK_TOP_HALF, BLOCK_TOP_YAW = (0.50, -0.45, TOP + 0.42), 0.10, 1.1
STOOL_X, STOOL_Y, STOOL_SEAT = 0.76, 0.12, TOP + 0.3
DOTTED_CENTRE, DOTTED_RADIUS = (STOOL_X, STOOL_Y, STOOL_SEAT + 0.13), 0.115
POT_X, POT_Y = -0.74, 0.16


@inlined
def norm2(a: float, b: float) -> float:
    """sqrt(a^2 + b^2) without the guard against overflow that makes `math.hypot` several times slower."""
    return math.sqrt(a * a + b * b)


@inlined
def _disc(x: float, y: float, z: float, radius: float, half: float, rounding: float) -> float:
    """A flat cylinder around z with rounded edges."""
    a = math.sqrt(x * x + y * y) - radius + rounding
    b = abs(z) - half + rounding
    return min(max(a, b), 0.0) + norm2(max(a, 0.0), max(b, 0.0)) - rounding


@inlined
def _box(x: float, y: float, z: float, half: float, yaw: float, rounding: float) -> float:
    """A rounded cube turned about z."""
    c, s = math.cos(yaw), math.sin(yaw)
    a = abs(c * x + s * y) - half + rounding
    b = abs(c * y - s * x) - half + rounding
    d = abs(z) - half + rounding
    outside = math.sqrt(max(a, 0.0) ** 2 + max(b, 0.0) ** 2 + max(d, 0.0) ** 2)
    return outside + min(max(a, b, d), 0.0) - rounding


@inlined
def _rod(
    x: float, y: float, z: float, ax: float, ay: float, az: float, bx: float, by: float, bz: float, radius: float
) -> float:
    """A capsule from a to b."""
    px, py, pz = x - ax, y - ay, z - az
    ux, uy, uz = bx - ax, by - ay, bz - az
    h = (px * ux + py * uy + pz * uz) / (ux * ux + uy * uy + uz * uz)
    h = min(max(h, 0.0), 1.0)
    return math.sqrt((px - h * ux) ** 2 + (py - h * uy) ** 2 + (pz - h * uz) ** 2) - radius


@inlined
def _ball(x: float, y: float, z: float, radius: float) -> float:
    return math.sqrt(x * x + y * y + z * z) - radius


@inlined
def _feet(x: float, y: float, z: float) -> float:
    """Three balls below the plate, by folding the angle into a third of a turn."""
    third = 2.0 * math.pi / 3.0
    angle = math.atan2(y, x)
    angle -= third * math.floor(angle / third + 0.5)
    r = math.sqrt(x * x + y * y)
    return _ball(r * math.cos(angle) - 0.78, r * math.sin(angle), z + 0.82, 0.075)


@inlined
def _arch(x: float, y: float, z: float) -> float:
    """Two pillars and a half ring: the distance to their centre line, then a rounded bar around it."""
    h = z - ARCH_SPRING
    if h > 0.0:
        q = abs(math.sqrt(x * x + h * h) - ARCH_RADIUS)
    else:
        q = abs(abs(x) - ARCH_RADIUS)
    a = q - ARCH_HALF + 0.02
    b = abs(y - ARCH_Y) - 0.13 + 0.02
    bar = min(max(a, b), 0.0) + norm2(max(a, 0.0), max(b, 0.0)) - 0.02
    return max(bar, TOP - z)


@inlined
def _cage(x: float, y: float, z: float) -> float:
    """The lantern: eight meridian wires (folded into one), two rings and the wire it hangs by."""
    y -= ARCH_Y
    z -= LANTERN_Z
    r = math.sqrt(x * x + y * y)
    eighth = math.pi / 4.0
    angle = math.atan2(y, x)
    angle -= eighth * math.floor(angle / eighth + 0.5)
    u, v = r * math.cos(angle), r * math.sin(angle)
    wire = norm2(norm2(u, z) - LANTERN_RADIUS, v) - 0.011
    ring = norm2(r - LANTERN_RADIUS * 0.894, abs(z) - LANTERN_RADIUS * 0.447) - 0.011
    hook = _rod(x, y, z, 0.0, 0.0, LANTERN_RADIUS, 0.0, 0.0, ARCH_RADIUS + ARCH_SPRING - LANTERN_Z, 0.011)
    return min(wire, ring, hook)


@inlined
def _knot(x: float, y: float, z: float) -> float:
    """A (2, 3) torus knot standing upright: in the half plane at an angle, its two strands are two discs.

    Strands cross that plane at a slant, the more so the nearer the axis: the factor makes up for it. The knot lies in
    a ring, whose plain distance is the better bound from afar.
    """
    x, y, z = x - KNOT_CENTRE[0], z - KNOT_CENTRE[2], y - KNOT_CENTRE[1]
    r = math.sqrt(x * x + y * y)
    turn = 1.5 * math.atan2(y, x)
    c, s = 0.1 * math.cos(turn), 0.1 * math.sin(turn)
    strand = min(norm2(r - 0.21 - c, z - s), norm2(r - 0.21 + c, z + s)) - 0.047
    slant = min(r / norm2(r, 0.15), 0.62)
    return max(slant * strand, norm2(r - 0.21, z) - 0.148)


@inlined
def _stem(x: float, y: float, z: float) -> float:
    x, y = x - KNOT_CENTRE[0], y - KNOT_CENTRE[1]
    base = _disc(x, y, z - TOP - 0.02, 0.13, 0.02, 0.012)
    return min(base, _rod(x, y, z, 0.0, 0.0, TOP, 0.0, 0.0, KNOT_CENTRE[2] - 0.3, 0.018))


@inlined
def _stool(x: float, y: float, z: float) -> float:
    """A round seat on four splayed legs, folded into one leg."""
    x, y = x - STOOL_X, y - STOOL_Y
    seat = _disc(x, y, z - STOOL_SEAT, 0.18, 0.018, 0.012)
    leg = _rod(abs(x), abs(y), z, 0.125, 0.125, TOP, 0.07, 0.07, STOOL_SEAT, 0.013)
    return min(seat, leg)


@inlined
def _pot(x: float, y: float, z: float) -> float:
    """A cup that widens upwards, with a rim; the slope is folded into a factor."""
    x, y, z = x - POT_X, y - POT_Y, z - TOP
    r = math.sqrt(x * x + y * y)
    wall = max(0.95 * (r - 0.085 - 0.25 * z), z - 0.2, -z)
    return min(wall, _disc(x, y, z - 0.19, 0.15, 0.022, 0.012))


@inlined
def _trunk(x: float, y: float, z: float) -> float:
    x, y, z = x - POT_X, y - POT_Y, z - TOP
    low = _rod(x, y, z, 0.0, 0.0, 0.18, 0.02, 0.0, 0.5, 0.024)
    left = _rod(x, y, z, 0.02, 0.0, 0.44, -0.1, 0.04, 0.62, 0.016)
    right = _rod(x, y, z, 0.02, 0.0, 0.48, 0.12, -0.04, 0.68, 0.016)
    return min(low, left, right)


@inlined
def _leaves(x: float, y: float, z: float) -> float:
    """Four crowns that melt into each other (polynomial smooth minimum)."""
    x, y, z = x - POT_X, y - POT_Y, z - TOP
    d = _ball(x + 0.10, y - 0.05, z - 0.66, 0.15)
    for k in range(3):
        if k == 0:
            other = _ball(x - 0.12, y + 0.04, z - 0.72, 0.15)
        elif k == 1:
            other = _ball(x - 0.01, y - 0.01, z - 0.86, 0.14)
        else:
            other = _ball(x - 0.0, y + 0.12, z - 0.62, 0.11)
        h = max(0.05 - abs(d - other), 0.0) / 0.05
        d = min(d, other) - h * h * 0.0125
    return d


@inlined
def part_distance(part: int, x: float, y: float, z: float) -> float:
    """Distance from a point to one part; negative inside."""
    if part == PLATE:
        return _disc(x, y, z - TOP + 0.06, 1.06, 0.06, 0.025)
    if part == FEET:
        return _feet(x, y, z)
    if part == ARCH:
        return _arch(x, y, z)
    if part == CAGE:
        return _cage(x, y, z)
    if part == ORB:
        return _ball(x, y - ARCH_Y, z - LANTERN_Z, 0.095)
    if part == BALL:
        return _ball(x - BALL_CENTRE[0], y - BALL_CENTRE[1], z - BALL_CENTRE[2], BALL_RADIUS)
    if part == KNOT:
        return _knot(x, y, z)
    if part == STEM:
        return _stem(x, y, z)
    if part == BLOCK_LOW:
        c = BLOCK_LOW_CENTRE
        return _box(x - c[0], y - c[1], z - c[2], BLOCK_LOW_HALF, BLOCK_LOW_YAW, 0.015)
    if part == BLOCK_TOP:
        c = BLOCK_TOP_CENTRE
        return _box(x - c[0], y - c[1], z - c[2], BLOCK_TOP_HALF, BLOCK_TOP_YAW, 0.012)
    if part == STOOL:
        return _stool(x, y, z)
    if part == DOTTED:
        return _ball(x - DOTTED_CENTRE[0], y - DOTTED_CENTRE[1], z - DOTTED_CENTRE[2], DOTTED_RADIUS)
    if part == POT:
        return _pot(x, y, z)
    if part == TRUNK:
        return _trunk(x, y, z)
    return _leaves(x, y, z)


@inlined
def nearest(parts: int, x: float, y: float, z: float) -> tuple[float, int]:
    """(distance, part) of the nearest of the parts whose bit is set in `parts`."""
    best, which = 1e9, NOTHING
    for part in range(N_PARTS):
        if parts >> part & 1:
            d = part_distance(part, x, y, z)
            if d < best:
                best, which = d, part
    return best, which
