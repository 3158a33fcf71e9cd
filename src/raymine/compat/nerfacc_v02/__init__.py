"""The Python API of nerfacc 0.2.4 on CPU and CUDA, without a compiler.

`from raymine.compat import nerfacc_v02 as nerfacc` replaces `import nerfacc`. If you cannot change that line, call
`raymine.compat.nerfacc.install(version="0.2")` before it. docs/toolkit/nerfacc_older.md lists names and differences.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import Tensor

from raymine.compat._standin import refusing
from raymine.compat.nerfacc_v02.cdf import ray_resampling
from raymine.compat.nerfacc_v02.contraction import ContractionType, contract, contract_inv
from raymine.compat.nerfacc_v02.grid import Grid, OccupancyGrid, query_grid
from raymine.compat.nerfacc_v02.intersection import ray_aabb_intersect
from raymine.compat.nerfacc_v02.losses import distortion as loss_distortion
from raymine.compat.nerfacc_v02.pack import pack_data, unpack_data, unpack_info
from raymine.compat.nerfacc_v02.ray_marching import ray_marching
from raymine.compat.nerfacc_v02.version import __version__
from raymine.compat.nerfacc_v02.vol_rendering import (
    accumulate_along_rays,
    render_visibility,
    render_weight_from_alpha,
    render_weight_from_density,
    rendering,
)
from raymine.compat.nerfacc_v03 import NEWER_NAMES

__all__ = [
    "ContractionType",
    "Grid",
    "OccupancyGrid",
    "__version__",
    "accumulate_along_rays",
    "contract",
    "contract_inv",
    "loss_distortion",
    "pack_data",
    "query_grid",
    "ray_aabb_intersect",
    "ray_marching",
    "ray_resampling",
    "render_visibility",
    "render_weight_from_alpha",
    "render_weight_from_density",
    "rendering",
    "unpack_data",
    "unpack_info",
    "unpack_to_ray_indices",
]

MODULES = (
    "cdf",
    "contraction",
    "cuda",
    "grid",
    "intersection",
    "losses",
    "pack",
    "ray_marching",
    "version",
    "vol_rendering",
)
"""Modules that `install` makes importable."""


def unpack_to_ray_indices(packed_info: Tensor) -> Tensor:
    """As `unpack_info`, its newer name."""
    warnings.warn("`unpack_to_ray_indices` is the older name of `unpack_info`.", DeprecationWarning, stacklevel=2)
    return unpack_info(packed_info)


_NEWER = "is of nerfacc 0.4 and later. Call `raymine.compat.nerfacc.install()` before importing nerfacc."
_NEXT = 'is of nerfacc 0.3. Call `raymine.compat.nerfacc.install(version="0.3")` before importing nerfacc.'

if not TYPE_CHECKING:
    __getattr__ = refusing(
        "nerfacc",
        __name__,
        {
            **dict.fromkeys(NEWER_NAMES, _NEWER),
            "pack_info": _NEXT,
            "render_transmittance_from_alpha": _NEXT,
            "render_transmittance_from_density": _NEXT,
            "volumetric_rendering": "was renamed to `rendering` in nerfacc 0.1.",
        },
    )
