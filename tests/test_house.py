"""Rules of the repository: import layers, side effects of imports, exported names, test locations, file sizes."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import raymine

ROOT = Path(raymine.__file__).parent

LAYERS = [
    {"errors", "_version"},
    {"kernels"},
    {
        "contracts",
        "files",
        "http_head",
        "lifetime",
        "listening",
        "machine",
        "progress_bar",
        "quantities",
        "run_files",
        "terminal",
    },
    {"caches", "cameras", "pictures", "workers"},
    {"pages", "_arguments"},
    {"toolkit"},
    {"scenes", "rays", "samplers", "fields", "render", "losses", "mining", "pixels"},
    {"step"},
    {"engines"},
    {"config"},
    {"evaluate", "checkpoint", "metrics_log", "tracking", "monitor", "export", "recipes"},
    {"rundir", "ingestion"},
    {"experiment"},
    {"report"},
    {"bench", "compat", "lightning", "pipeline", "viewer", "serve"},
    {"api", "cli"},
    {"__main__"},
]
"""From the bottom up, as docs/ARCHITECTURE.md draws it. A module imports only what lies below its own line."""

LEVEL = {name: i for i, names in enumerate(LAYERS) for name in names}

OF_NO_MODULE = {
    "test_bench_poses.py",
    "test_docs.py",
    "test_house.py",
    "test_examples.py",
    "test_own_model.py",
    "toolkit/test_gpu.py",
}
"""Tests of several modules at once, or of the repository. Those in `tests/fuzz` are of all ops of a package."""


def imports_of(path: Path) -> set[str]:
    """Top-level raymine modules that a file imports, wherever in it."""
    package = ["raymine", *path.relative_to(ROOT).with_suffix("").parts][:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("raymine.")}


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_layers_below(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} has no place in LAYERS"
    for other in imports_of(path) - {own, "__version__"}:
        assert other in LEVEL, f"{path} imports {other}, which has no place in LAYERS"
        assert LEVEL[other] < LEVEL[own], f"{own} may not import {other}"


SHARED = ("dispatch", "packed", "contraction", "activations", "threads", "compiling", "checks", "inverse_cdf")
"""Modules of `kernels` that belong to no op."""


def test_other_packages_import_ops_through_their_op_module_only() -> None:
    """Other packages import `kernels/<op>/op.py` and nothing else of an op. `engines` launches Triton kernels."""
    for path in modules():
        if path.relative_to(ROOT).parts[0] in ("kernels", "engines"):
            continue
        for line in path.read_text().splitlines():
            if "raymine.kernels." in line and "import" in line:
                shared = any(f"raymine.kernels.{name} import" in line for name in SHARED)
                assert ".op import" in line or shared, f"{path}: {line.strip()}"
            if "from raymine.kernels import " in line:
                names = {name.split()[0] for name in line.partition(" import ")[2].split(",")}
                assert names <= set(SHARED), f"{path}: {line.strip()}"


def test_test_files_mirror_source_files() -> None:
    """The test of `a/b.py` is `tests/a/test_b.py`; a test of one part of it is `tests/a/test_b_<part>.py`.

    Tests of scripts in `benchmarks/` are in `tests/benchmarks`.
    """
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py")):
        relative = path.relative_to(tests)
        if relative.as_posix() in OF_NO_MODULE or relative.parts[0] == "fuzz":
            continue
        words = path.stem.split("_")[1:]
        names = ["_".join(words[:n]) for n in range(1, len(words) + 1)]
        files = [each for name in names for each in (name, f"{name}.py", f"_{name}.py")]
        home = tests.parent if relative.parts[0] == "benchmarks" else ROOT
        found = any((home / relative.parent / file).exists() for file in files)
        assert found, f"tests/{relative} has the name of no module in raymine/{relative.parent}"


def test_source_files_have_at_most_500_lines() -> None:
    tests = sorted(Path(__file__).parent.rglob("*.py"))
    assert not [p for p in (*modules(), *tests) if len(p.read_text().splitlines()) > 500]


@pytest.mark.parametrize("name", [m.name for m in pkgutil.walk_packages([str(ROOT)], "raymine.")])
def test_every_module_imports_and_every_exported_name_exists(name: str) -> None:
    if name.rpartition(".")[2].startswith("gpu") or name.startswith("raymine.engines.fused."):
        pytest.importorskip("triton")
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", []):
        assert hasattr(module, exported), exported


def test_import_compiles_nothing_and_starts_no_cuda() -> None:
    code = (
        "import sys, raymine\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules, 'import raymine must stay light'\n"
        "import raymine.experiment, torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'numba' not in sys.modules, 'kernels must be imported lazily'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
