"""The Python API of nerfacc 0.5.3 on CPU and CUDA, without a compiler.

`from raymine.compat import nerfacc` replaces `import nerfacc`. If you cannot change that line, call
`raymine.compat.nerfacc.install()` before it. `install(version="0.3")` serves a program that was written for an older
nerfacc (`raymine.compat.nerfacc_v03`, `nerfacc_v02`). docs/toolkit/nerfacc.md lists the names and the differences.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from raymine.compat._standin import refusing, stand_in
from raymine.compat.nerfacc.data_specs import RayIntervals, RaySamples
from raymine.compat.nerfacc.estimators.occ_grid import OccGridEstimator
from raymine.compat.nerfacc.estimators.prop_net import PropNetEstimator
from raymine.compat.nerfacc.grid import ray_aabb_intersect, traverse_grids
from raymine.compat.nerfacc.losses import distortion
from raymine.compat.nerfacc.pack import pack_info
from raymine.compat.nerfacc.pdf import importance_sampling, searchsorted
from raymine.compat.nerfacc.scan import exclusive_prod, exclusive_sum, inclusive_prod, inclusive_sum
from raymine.compat.nerfacc.version import __version__
from raymine.compat.nerfacc.volrend import (
    accumulate_along_rays,
    render_transmittance_from_alpha,
    render_transmittance_from_density,
    render_visibility_from_alpha,
    render_visibility_from_density,
    render_weight_from_alpha,
    render_weight_from_density,
    rendering,
)
from raymine.errors import ConfigError

__all__ = [
    "OccGridEstimator",
    "PropNetEstimator",
    "RayIntervals",
    "RaySamples",
    "__version__",
    "accumulate_along_rays",
    "distortion",
    "exclusive_prod",
    "exclusive_sum",
    "importance_sampling",
    "inclusive_prod",
    "inclusive_sum",
    "install",
    "pack_info",
    "ray_aabb_intersect",
    "render_transmittance_from_alpha",
    "render_transmittance_from_density",
    "render_visibility_from_alpha",
    "render_visibility_from_density",
    "render_weight_from_alpha",
    "render_weight_from_density",
    "rendering",
    "searchsorted",
    "traverse_grids",
]

_MODULES = (
    "cameras",
    "data_specs",
    "estimators",
    "estimators.base",
    "estimators.occ_grid",
    "estimators.prop_net",
    "grid",
    "losses",
    "pack",
    "pdf",
    "scan",
    "version",
    "volrend",
)


_VDB = "is not served: raymine has no VDB and no octree. Use `OccGridEstimator` and `traverse_grids`."
_OLDER = 'is of nerfacc 0.2 and 0.3. Call `raymine.compat.nerfacc.install(version="0.3")` before importing nerfacc.'
_REFUSED = {
    "VDBEstimator": _VDB,
    "traverse_vdbs": _VDB,
    "estimators.vdb": _VDB,
    "estimators.n3tree": _VDB,
    "cuda": "holds the compiled functions of nerfacc and is not served. Use the functions of `nerfacc` that call them.",
    "Grid": _OLDER,
    "OccupancyGrid": _OLDER,
    "query_grid": _OLDER,
    "ContractionType": _OLDER,
    "contract": _OLDER,
    "contract_inv": _OLDER,
    "ray_marching": _OLDER,
    "render_visibility": _OLDER,
    "pack_data": _OLDER,
    "unpack_data": _OLDER,
    "unpack_info": _OLDER,
    "unpack_to_ray_indices": _OLDER,
    "ray_resampling": _OLDER,
    "loss_distortion": _OLDER,
    "contraction": _OLDER,
    "intersection": _OLDER,
    "vol_rendering": _OLDER,
    "cdf": _OLDER,
}

if not TYPE_CHECKING:
    __getattr__ = refusing("nerfacc", __name__, _REFUSED)

VERSIONS = {"0.5": __name__, "0.3": "raymine.compat.nerfacc_v03", "0.2": "raymine.compat.nerfacc_v02"}
"""The package that serves a version of nerfacc."""


def install(force: bool = False, version: str = "0.5") -> ModuleType:
    """Make `import nerfacc` return the package that serves a version. Returns that package.

    force: replace nerfacc even if it is already imported. version: the nerfacc that the program was written for, "0.5"
    (this package), "0.3" or "0.2". These have functions of one name with different arguments and results.
    """
    if version not in VERSIONS:
        raise ConfigError(
            f"`version` must be one of {', '.join(VERSIONS)}, got {version!r}. No other version of nerfacc is served."
        )
    package = importlib.import_module(VERSIONS[version])
    names = _MODULES if version == "0.5" else package.MODULES
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return stand_in("nerfacc", package, modules, force)
