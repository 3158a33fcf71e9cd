"""Colours and light of the built-in scene, in Numba.

Everything is a smooth function of the point and, for glossy parts, of the viewing direction: a pattern's edges are
softened over about a pixel of the default pictures, so that views agree with each other and none of it is noise.
Colours here are linear; `encode` turns them into what a picture holds.
"""

from __future__ import annotations

import math

from raymine.scenes.builtin.shapes import (
    ARCH,
    ARCH_RADIUS,
    ARCH_SPRING,
    ARCH_Y,
    BALL,
    BALL_CENTRE,
    BLOCK_LOW,
    BLOCK_LOW_CENTRE,
    BLOCK_LOW_YAW,
    BLOCK_TOP,
    BLOCK_TOP_CENTRE,
    BLOCK_TOP_YAW,
    CAGE,
    DOTTED,
    DOTTED_CENTRE,
    FEET,
    KNOT,
    LANTERN_Z,
    LEAVES,
    ORB,
    PLATE,
    POT,
    STEM,
    STOOL,
    TOP,
    TRUNK,
    inlined,
    norm2,
)

LIGHT = (0.44, -0.52, 0.733)  # unit vector towards the key light

Colour = tuple[float, float, float]


@inlined
def _soft(value: float, edge: float, width: float) -> float:
    """0 below `edge`, 1 above it, smooth over +-`width`."""
    t = min(max((value - edge) / (2.0 * width) + 0.5, 0.0), 1.0)
    return t * t * (3.0 - 2.0 * t)


@inlined
def _wave(value: float, width: float) -> float:
    """A softened square wave of period 2 in `value`, between -1 and 1; `width` is that of an edge."""
    triangle = 1.0 - 2.0 * abs(value - 2.0 * math.floor(value * 0.5) - 1.0)
    return 2.0 * _soft(triangle, 0.0, 2.0 * width) - 1.0


@inlined
def _mix(a: Colour, b: Colour, t: float) -> Colour:
    return (a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t)


@inlined
def _plate(x: float, y: float, z: float) -> Colour:
    """A checker of rings and sectors, a brass rim, a walnut underside."""
    r = math.sqrt(x * x + y * y)
    if z < TOP - 0.02:
        return _mix((0.20, 0.10, 0.05), (0.55, 0.36, 0.12), _soft(r, 1.02, 0.02))
    angle = math.atan2(y, x)
    sectors = _wave(angle * 12.0 / math.pi, min(0.008 * 12.0 / (math.pi * max(r, 0.05)), 0.4))
    rings = _wave(r / 0.16, 0.05)
    checker = 0.5 + 0.5 * sectors * rings
    pattern = _mix((0.78, 0.70, 0.56), (0.05, 0.11, 0.15), checker)
    centre = _mix((0.62, 0.23, 0.12), pattern, _soft(r, 0.16, 0.012))
    return _mix(centre, (0.62, 0.42, 0.15), _soft(r, 0.98, 0.012))


@inlined
def _stones(x: float, y: float, z: float) -> Colour:
    """Voussoirs of two colours, counted along the arch's centre line, with a pale joint between them."""
    h = z - ARCH_SPRING
    if h > 0.0:
        along = ARCH_RADIUS * math.atan2(h, abs(x))
    else:
        along = h
    turn = along / 0.1361  # twelve stones in the half ring
    joint = abs(turn - math.floor(turn) - 0.5)
    stone = _mix((0.74, 0.60, 0.42), (0.52, 0.17, 0.09), 0.5 + 0.5 * _wave(turn + 0.5, 0.05))
    grain = 0.06 * math.sin(23.0 * x + 9.0 * z) * math.sin(19.0 * y - 13.0 * z)
    stone = (stone[0] * (1.0 + grain), stone[1] * (1.0 + grain), stone[2] * (1.0 + grain))
    return _mix(stone, (0.80, 0.72, 0.58), 0.6 * _soft(joint, 0.44, 0.04))


@inlined
def _block(part: int, x: float, y: float, z: float) -> Colour:
    """Painted cubes: stripes around the lower one, a ring on each face of the upper one."""
    if part == BLOCK_LOW:
        x, y, z, yaw = x - BLOCK_LOW_CENTRE[0], y - BLOCK_LOW_CENTRE[1], z - BLOCK_LOW_CENTRE[2], BLOCK_LOW_YAW
    else:
        x, y, z, yaw = x - BLOCK_TOP_CENTRE[0], y - BLOCK_TOP_CENTRE[1], z - BLOCK_TOP_CENTRE[2], BLOCK_TOP_YAW
    c, s = math.cos(yaw), math.sin(yaw)
    u, v = c * x + s * y, c * y - s * x
    if part == BLOCK_LOW:
        stripes = _wave((u + z) / 0.075, 0.07)
        return _mix((0.05, 0.30, 0.33), (0.82, 0.76, 0.62), 0.5 + 0.5 * stripes)
    # The two smaller coordinates are the ones within the face.
    big = max(abs(u), abs(v), abs(z))
    r = math.sqrt(max(u * u + v * v + z * z - big * big, 0.0))
    ring = _soft(r, 0.035, 0.006) * (1.0 - _soft(r, 0.065, 0.006))
    return _mix((0.80, 0.42, 0.04), (0.85, 0.80, 0.70), ring)


@inlined
def _dots(x: float, y: float, z: float) -> Colour:
    """Six rows of dots around a ball, every other row shifted by half a step."""
    x, y, z = x - DOTTED_CENTRE[0], y - DOTTED_CENTRE[1], z - DOTTED_CENTRE[2]
    r = math.sqrt(x * x + y * y)
    row = math.atan2(z, r) * 6.0 / math.pi
    k = math.floor(row + 0.5)
    count = max(1.0, math.floor(12.0 * math.cos(k * math.pi / 6.0) + 0.5))
    turn = math.atan2(y, x) * count / (2.0 * math.pi) + 0.5 * (k - 2.0 * math.floor(k * 0.5))
    across = (turn - math.floor(turn + 0.5)) * 2.0 * math.pi / count * math.cos(k * math.pi / 6.0)
    away = norm2(across, (row - k) * math.pi / 6.0)
    return _mix((0.60, 0.05, 0.07), (0.88, 0.84, 0.78), _soft(away, 0.16, 0.05))


@inlined
def albedo(part: int, x: float, y: float, z: float) -> Colour:
    """Linear base colour of a part at a point of its surface."""
    if part == PLATE:
        return _plate(x, y, z)
    if part == ARCH:
        return _stones(x, y, z)
    if part == BALL:
        swirl = math.sin(9.0 * (z - BALL_CENTRE[2]) + 4.0 * (x - BALL_CENTRE[0]))
        return _mix((0.012, 0.035, 0.14), (0.02, 0.11, 0.25), _soft(swirl, 0.0, 0.5))
    if part in (BLOCK_LOW, BLOCK_TOP):
        return _block(part, x, y, z)
    if part == DOTTED:
        return _dots(x, y, z)
    if part == KNOT:
        return (0.83, 0.52, 0.14)
    if part == LEAVES:
        mottle = math.sin(31.0 * x + 2.0) * math.sin(29.0 * y + 1.0) * math.sin(27.0 * z)
        return _mix((0.05, 0.18, 0.05), (0.26, 0.42, 0.09), 0.5 + 0.5 * mottle)
    if part == POT:
        return _mix((0.50, 0.20, 0.10), (0.80, 0.62, 0.42), _soft(z - TOP, 0.165, 0.01))
    if part == TRUNK:
        return (0.16, 0.09, 0.05)
    if part == STOOL:
        grain = 0.5 + 0.5 * math.sin(38.0 * x + 3.0 * math.sin(11.0 * y))
        return _mix((0.42, 0.24, 0.11), (0.58, 0.36, 0.18), grain)
    if part in (FEET, STEM):
        return (0.55, 0.36, 0.12)
    if part == CAGE:
        return (0.06, 0.06, 0.07)
    return (0.95, 0.78, 0.45)


@inlined
def gloss(part: int) -> Colour:
    """(mirror reflection head on, strength of the highlight, sharpness of the highlight) of a part."""
    if part == BALL:
        return (0.16, 1.0, 90.0)
    if part == KNOT:
        return (0.45, 0.6, 40.0)
    if part in (FEET, STEM):
        return (0.20, 0.4, 30.0)
    if part in (BLOCK_LOW, BLOCK_TOP, DOTTED):
        return (0.0, 0.18, 24.0)
    if part == PLATE:
        return (0.0, 0.10, 20.0)
    return (0.0, 0.0, 1.0)


@inlined
def surroundings(x: float, y: float, z: float) -> Colour:
    """What a mirror would show in a direction: a studio with a bright window, a pale ceiling and a warm floor."""
    colour = _mix((0.16, 0.11, 0.08), (0.62, 0.68, 0.76), _soft(z, 0.0, 0.25))
    window = max(x * LIGHT[0] + y * LIGHT[1] + z * LIGHT[2], 0.0) ** 24
    second = max(-0.8 * x + 0.3 * y + 0.52 * z, 0.0) ** 16
    return (
        colour[0] + 2.6 * window + 0.35 * second,
        colour[1] + 2.5 * window + 0.45 * second,
        colour[2] + 2.2 * window + 0.6 * second,
    )


@inlined
def shade(part: int, p: Colour, n: Colour, view: Colour, shadow: float, open_sky: float) -> Colour:
    """Linear colour of a surface point seen along the unit direction `view`.

    `shadow` is the share of the key light that arrives, `open_sky` the share of the surroundings; both in 0..1.
    """
    base = albedo(part, p[0], p[1], p[2])
    if part == ORB:
        facing = -(view[0] * n[0] + view[1] * n[1] + view[2] * n[2])
        return _mix((0.95, 0.55, 0.20), (1.0, 0.86, 0.58), max(facing, 0.0))
    key = max(n[0] * LIGHT[0] + n[1] * LIGHT[1] + n[2] * LIGHT[2], 0.0) * shadow
    up = 0.5 + 0.5 * n[2]
    lx, ly, lz = -p[0], ARCH_Y - p[1], LANTERN_Z - p[2]
    far2 = lx * lx + ly * ly + lz * lz + 1e-6
    lamp = max((n[0] * lx + n[1] * ly + n[2] * lz) / math.sqrt(far2), 0.0) * 0.035 / (far2 + 0.03)
    r = base[0] * (1.25 * key + open_sky * (0.15 + 0.24 * up) + 1.0 * lamp)
    g = base[1] * (1.20 * key + open_sky * (0.14 + 0.27 * up) + 0.65 * lamp)
    b = base[2] * (1.08 * key + open_sky * (0.13 + 0.32 * up) + 0.3 * lamp)
    mirror, strength, sharp = gloss(part)
    if strength == 0.0:
        return (r, g, b)
    along = view[0] * n[0] + view[1] * n[1] + view[2] * n[2]
    mx, my, mz = view[0] - 2.0 * along * n[0], view[1] - 2.0 * along * n[1], view[2] - 2.0 * along * n[2]
    spot = strength * shadow * max(mx * LIGHT[0] + my * LIGHT[1] + mz * LIGHT[2], 0.0) ** sharp
    if mirror > 0.0:
        fresnel = mirror + (1.0 - mirror) * 0.5 * (1.0 - min(-along, 1.0)) ** 5
        seen = surroundings(mx, my, mz)
        # Metals colour what they mirror, glaze does not.
        tint = base if part != BALL else (1.0, 1.0, 1.0)
        r = r * (1.0 - mirror) + fresnel * seen[0] * tint[0] * open_sky
        g = g * (1.0 - mirror) + fresnel * seen[1] * tint[1] * open_sky
        b = b * (1.0 - mirror) + fresnel * seen[2] * tint[2] * open_sky
    return (r + spot, g + 0.96 * spot, b + 0.88 * spot)


@inlined
def encode(value: float) -> float:
    """Linear light to a picture's value in 0..1: a gentle shoulder, then gamma 2.2."""
    value = max(value, 0.0)
    return min(value * (1.0 + 0.18 * value) / (1.0 + 0.45 * value) * 1.2, 1.0) ** (1.0 / 2.2)
