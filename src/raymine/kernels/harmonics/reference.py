"""Real spherical harmonics as polynomials of a unit direction (x, y, z), in plain torch: the definition.

    Y_lm = N_lm P_lm(z) C_m(x, y) for m >= 0,    Y_l,-m = N_lm P_lm(z) S_m(x, y) for m > 0
    C_0 = 1, S_0 = 0,    C_{m+1} = x C_m - y S_m,    S_{m+1} = x S_m + y C_m
    P_mm = (-1)^m (2 m - 1)!!,    (l - m) P_lm = (2 l - 1) z P_{l-1,m} - (l + m - 1) P_{l-2,m}
    N_lm = sqrt((2 l + 1) / (4 pi) * (l - m)! / (l + m)!), times sqrt(2) for m > 0

Column l^2 + l + m holds Y_lm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST_DEGREE = 8


def harmonics(direction: Tensor, degree: int) -> Tensor:
    """[n, 3] -> [n, degree^2], bands 0 .. degree - 1. Differentiable. Directions are not normalised here."""
    x, y, z = direction.unbind(-1)
    columns: list[Tensor] = [direction] * degree**2
    # x * 0 instead of a constant, so that C_0 and S_0 belong to the graph of `direction` too.
    cosine, sine = x * 0 + 1, x * 0
    straight = 1.0
    for m in range(degree):
        below, here = torch.zeros_like(z), torch.full_like(z, straight)
        for l in range(m, degree):
            norm = math.sqrt((2 * l + 1) / (4 * math.pi) * math.factorial(l - m) / math.factorial(l + m))
            norm *= 1.0 if m == 0 else math.sqrt(2.0)
            columns[l * l + l + m] = norm * here * cosine
            if m > 0:
                columns[l * l + l - m] = norm * here * sine
            below, here = here, ((2 * l + 1) * z * here - (l + m) * below) / (l - m + 1)
        cosine, sine = x * cosine - y * sine, x * sine + y * cosine
        straight *= -(2 * m + 1)
    return torch.stack(columns, -1)
