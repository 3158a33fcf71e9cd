"""The Python API of nerfacc 0.3.5 on CPU and CUDA, without a compiler.

`from raymine.compat import nerfacc_v03 as nerfacc` replaces `import nerfacc`. If you cannot change that line, call
`raymine.compat.nerfacc.install(version="0.3")` before it. docs/toolkit/nerfacc_older.md lists names and differences.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import Tensor

from raymine.compat._standin import refusing
from raymine.compat.nerfacc_v03.cdf import ray_resampling
from raymine.compat.nerfacc_v03.contraction import ContractionType, contract, contract_inv
from raymine.compat.nerfacc_v03.grid import Grid, OccupancyGrid, query_grid
from raymine.compat.nerfacc_v03.intersection import ray_aabb_intersect
from raymine.compat.nerfacc_v03.losses import distortion as loss_distortion
from raymine.compat.nerfacc_v03.pack import pack_data, pack_info, unpack_data, unpack_info
from raymine.compat.nerfacc_v03.ray_marching import ray_marching
from raymine.compat.nerfacc_v03.version import __version__
from raymine.compat.nerfacc_v03.vol_rendering import (
    accumulate_along_rays,
    render_transmittance_from_alpha,
    render_transmittance_from_density,
    render_visibility,
    render_weight_from_alpha,
    render_weight_from_density,
    rendering,
)

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
    "pack_info",
    "query_grid",
    "ray_aabb_intersect",
    "ray_marching",
    "ray_resampling",
    "render_transmittance_from_alpha",
    "render_transmittance_from_density",
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


def unpack_to_ray_indices(packed_info: Tensor, n_samples: int) -> Tensor:
    """As `unpack_info`, its newer name."""
    warnings.warn("`unpack_to_ray_indices` is the older name of `unpack_info`.", DeprecationWarning, stacklevel=2)
    return unpack_info(packed_info, n_samples)


_NEWER = "is of nerfacc 0.4 and later. Call `raymine.compat.nerfacc.install()` before importing nerfacc."
NEWER_NAMES = (
    "OccGridEstimator", "PropNetEstimator", "RayIntervals", "RaySamples", "importance_sampling", "searchsorted",
    "traverse_grids", "inclusive_sum", "exclusive_sum", "inclusive_prod", "exclusive_prod",
    "render_visibility_from_alpha", "render_visibility_from_density", "estimators", "estimators.occ_grid",
    "estimators.prop_net", "volrend", "scan", "pdf", "data_specs", "cameras",
)  # fmt: skip
"""Names that nerfacc has had since 0.4."""

if not TYPE_CHECKING:
    __getattr__ = refusing(
        "nerfacc",
        __name__,
        {
            **dict.fromkeys(NEWER_NAMES, _NEWER),
            "sampling": "is not served: its functions are unfinished in nerfacc 0.3.5. Use `ray_marching`, or the "
            "`PropNetEstimator` of nerfacc 0.5.",
            "volumetric_rendering": "was renamed to `rendering` in nerfacc 0.1.",
        },
    )
