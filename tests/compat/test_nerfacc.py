"""The nerfacc drop-in as a whole: public names, the documentation page, and `install`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from raymine.compat import nerfacc
from raymine.errors import ConfigError
from support.paths import DOCS, TESTS

NAMES = {
    "": "OccGridEstimator PropNetEstimator RayIntervals RaySamples __version__ accumulate_along_rays distortion "
    "exclusive_prod exclusive_sum importance_sampling inclusive_prod inclusive_sum pack_info ray_aabb_intersect "
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
"""The public names of nerfacc 0.5.3 and of its main branch, by module."""

RENDERING = (
    "accumulate_along_rays render_transmittance_from_alpha render_transmittance_from_density render_visibility "
    "render_weight_from_alpha render_weight_from_density rendering"
)
OLDER = {
    "": "ContractionType Grid OccupancyGrid __version__ contract contract_inv loss_distortion pack_data pack_info "
    "query_grid ray_aabb_intersect ray_marching ray_resampling unpack_data unpack_info unpack_to_ray_indices "
    f"{RENDERING}",
    "cdf": "ray_resampling",
    "contraction": "ContractionType contract contract_inv",
    "cuda": "ContractionTypeGetter",
    "grid": "Grid OccupancyGrid query_grid",
    "intersection": "ray_aabb_intersect",
    "losses": "distortion",
    "pack": "pack_data pack_info unpack_data unpack_info",
    "ray_marching": "ray_marching",
    "vol_rendering": RENDERING,
}
"""The public names of nerfacc 0.3.5, by module."""

SINCE_03 = {"pack_info", "render_transmittance_from_alpha", "render_transmittance_from_density"}
"""Those of them that nerfacc 0.2.4 does not have."""

PAGE = DOCS / "toolkit/nerfacc.md"
OLDER_PAGE = DOCS / "toolkit/nerfacc_older.md"


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_of_nerfacc_exists(module: str) -> None:
    found = importlib.import_module(f"raymine.compat.nerfacc.{module}".rstrip("."))
    missing = [name for name in NAMES[module].split() if not hasattr(found, name)]
    assert missing == []


@pytest.mark.parametrize("version", ["0.2", "0.3"])
@pytest.mark.parametrize("module", OLDER)
def test_every_public_name_of_an_older_nerfacc_exists(module: str, version: str) -> None:
    package = nerfacc.VERSIONS[version]
    found = importlib.import_module(f"{package}.{module}".rstrip("."))
    wanted = set(OLDER[module].split()) - (SINCE_03 if version == "0.2" else set())
    assert {name for name in wanted if not hasattr(found, name)} == set()
    if not module:
        assert set(found.__all__) == wanted


@pytest.mark.parametrize(("page", "modules"), [(PAGE, NAMES), (OLDER_PAGE, OLDER)], ids=["0.5", "older"])
def test_documentation_lists_every_name_and_existing_test_files(page: Path, modules: dict[str, str]) -> None:
    text = page.read_text()
    for names in modules.values():
        for name in names.split():
            assert f"`{name}`" in text, name
    files = set(re.findall(r"`tests/([\w/]+\.py)`", text))
    assert files
    for file in files:
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


@pytest.mark.parametrize(
    ("version", "number", "code"),
    [
        ("0.3", "0.3.5", "from nerfacc.vol_rendering import render_transmittance_from_alpha"),
        ("0.2", "0.2.4", "from nerfacc.intersection import ray_aabb_intersect"),
    ],
)
def test_install_of_an_older_version(version: str, number: str, code: str) -> None:
    program = (
        "import raymine.compat.nerfacc as newest\n"
        f"ours = newest.install(version={version!r})\n"
        "import nerfacc, nerfacc.cuda as _C\n"
        f"assert nerfacc is ours and nerfacc.__version__ == {number!r}\n"
        "from nerfacc import ContractionType, OccupancyGrid, ray_marching\n"
        "from nerfacc.ray_marching import ray_marching as same\n"
        "assert same is ray_marching is nerfacc.ray_marching and _C.ContractionTypeGetter(0)\n"
        f"{code}\n"
        "try:\n"
        "    from nerfacc import OccGridEstimator\n"
        "except ImportError as error:\n"
        "    assert 'of nerfacc 0.4 and later' in str(error), error\n"
        "newest.install(force=True)\n"
        "from nerfacc import OccGridEstimator\n"
        "try:\n"
        "    import nerfacc.intersection\n"
        "except ImportError as error:\n"
        "    assert 'version=\"0.3\"' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_install_refuses_other_versions_by_name() -> None:
    with pytest.raises(ConfigError, match=r"`version` must be one of 0\.5, 0\.3, 0\.2, got '0\.4'"):
        nerfacc.install(version="0.4")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("VDBEstimator", "not served: raymine has no VDB.*Use `OccGridEstimator`"),
        ("traverse_vdbs", "not served"),
        ("cuda", "compiled functions"),
        ("ray_marching", r"of nerfacc 0\.2 and 0\.3.*install\(version=\"0\.3\"\)"),
    ],
)
def test_names_that_are_not_served_say_why(name: str, reason: str) -> None:
    with pytest.raises(AttributeError, match=f"`nerfacc.{name}` .*{reason}"):
        getattr(nerfacc, name)
    assert not hasattr(nerfacc, name)
    with pytest.raises(ImportError, match=f"`nerfacc.{name}` .*{reason}"):
        exec(f"from raymine.compat.nerfacc import {name}")
    with pytest.raises(ImportError, match=reason):
        importlib.import_module(f"raymine.compat.nerfacc.{name}")


def test_modules_that_are_not_served_say_why() -> None:
    for module in ("estimators.vdb", "estimators.n3tree"):
        with pytest.raises(ImportError, match="raymine has no VDB and no octree"):
            importlib.import_module(f"raymine.compat.nerfacc.{module}")
    with pytest.raises(ImportError, match=r"unfinished in nerfacc 0\.3\.5"):
        importlib.import_module("raymine.compat.nerfacc_v03.sampling")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        nerfacc.nothing  # noqa: B018
