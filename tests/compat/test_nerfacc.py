"""The nerfacc drop-in as a whole: public names, the documentation page, and `install`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from types import ModuleType

import pytest

from raymine.compat import nerfacc
from raymine.errors import ConfigError
from support.paths import DOCS, TESTS

NAMES = {
    "": "OccGridEstimator PropNetEstimator RayIntervals RaySamples __version__ accumulate_along_rays exclusive_prod "
    "exclusive_sum importance_sampling inclusive_prod inclusive_sum pack_info ray_aabb_intersect "
    "render_transmittance_from_alpha render_transmittance_from_density render_visibility_from_alpha "
    "render_visibility_from_density render_weight_from_alpha render_weight_from_density rendering searchsorted "
    "traverse_grids",
    "cameras": "opencv_lens_undistortion opencv_lens_undistortion_fisheye",
    "data_specs": "RayIntervals RaySamples",
    "estimators.base": "AbstractEstimator",
    "estimators.occ_grid": "OccGridEstimator",
    "estimators.prop_net": "PropNetEstimator get_proposal_requires_grad_fn",
    "grid": "ray_aabb_intersect traverse_grids",
    "losses": "distortion",
    "pack": "pack_info",
    "pdf": "importance_sampling searchsorted",
    "scan": "exclusive_prod exclusive_sum inclusive_prod inclusive_sum",
    "volrend": "accumulate_along_rays accumulate_along_rays_ render_transmittance_from_alpha "
    "render_transmittance_from_density render_visibility_from_alpha render_visibility_from_density "
    "render_weight_from_alpha render_weight_from_density rendering",
}
"""The public names of nerfacc 0.5.3, by module."""

PAGE = DOCS / "toolkit/nerfacc.md"


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_of_nerfacc_exists(module: str) -> None:
    found = importlib.import_module(f"raymine.compat.nerfacc.{module}".rstrip("."))
    missing = [name for name in NAMES[module].split() if not hasattr(found, name)]
    assert missing == []


def test_documentation_lists_every_name_and_existing_test_files() -> None:
    text = PAGE.read_text()
    for names in NAMES.values():
        for name in names.split():
            assert f"`{name}`" in text, name
    for file in set(re.findall(r"`tests/([\w/]+\.py)`", text)):
        assert (TESTS / file).is_file(), file


def test_install_makes_nerfacc_imports_resolve_to_the_drop_in() -> None:
    code = (
        "import raymine.compat.nerfacc as ours\n"
        "assert ours.install() is ours and ours.install() is ours\n"
        "import nerfacc, nerfacc.volrend, nerfacc.estimators.occ_grid\n"
        "from nerfacc.estimators.prop_net import PropNetEstimator\n"
        "from nerfacc import OccGridEstimator\n"
        "assert nerfacc is ours and nerfacc.__version__ == '0.5.3'\n"
        "assert nerfacc.volrend.rendering is ours.rendering and OccGridEstimator is ours.OccGridEstimator\n"
        "assert PropNetEstimator is ours.PropNetEstimator\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_install_raises_if_nerfacc_is_already_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ModuleType("nerfacc")
    original.__file__ = "/somewhere/nerfacc/__init__.py"
    for name in [name for name in sys.modules if name.split(".")[0] == "nerfacc"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nerfacc", original)
    with pytest.raises(ConfigError, match=r"already, from /somewhere/nerfacc/__init__\.py"):
        nerfacc.install()
    assert sys.modules["nerfacc"] is original
    before = set(sys.modules)
    try:
        assert nerfacc.install(force=True) is nerfacc
        assert sys.modules["nerfacc.grid"] is importlib.import_module("raymine.compat.nerfacc.grid")
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
