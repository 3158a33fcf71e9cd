"""The Python API of nerfacc 0.5.3 on CPU and CUDA, without a compiler.

`from raymine.compat import nerfacc` replaces `import nerfacc`. If you cannot change that line, call
`raymine.compat.nerfacc.install()` before it. docs/toolkit/nerfacc.md lists the names and the differences.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from raymine.compat._standin import stand_in
from raymine.compat.nerfacc.data_specs import RayIntervals, RaySamples
from raymine.compat.nerfacc.estimators.occ_grid import OccGridEstimator
from raymine.compat.nerfacc.estimators.prop_net import PropNetEstimator
from raymine.compat.nerfacc.grid import ray_aabb_intersect, traverse_grids
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

__all__ = [
    "OccGridEstimator",
    "PropNetEstimator",
    "RayIntervals",
    "RaySamples",
    "__version__",
    "accumulate_along_rays",
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


def install(force: bool = False) -> ModuleType:
    """Make `import nerfacc` return this package. Returns it. force: replace nerfacc even if it is already imported."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in _MODULES}
    return stand_in("nerfacc", sys.modules[__name__], modules, force)
