"""`raymine doctor`: what this machine supports, and which backend runs each op, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raymine._version import __version__

from . import output

_PACKAGES = ("torch", "numpy", "numba", "pillow", "safetensors", "tyro", "rich", "psutil", "filelock")
# Name of the extra, its module, its purpose.
_EXTRAS = (
    ("video", "av", "MP4 video from `raymine render`"),
    ("view", "viser", "`raymine view` and `raymine train --view`"),
    ("report", "matplotlib", "curves in `raymine report` and `raymine bench mining`"),
    ("tensorboard", "tensorboard", "`raymine train --track tensorboard`"),
    ("trackio", "trackio", "`raymine train --track trackio`"),
    ("mlflow", "mlflow", "`raymine train --track mlflow`"),
    ("ingest", "pycolmap", "poses of photos by `raymine ingest`"),
    ("mesh", "trimesh", "meshes from `raymine export`"),
    ("onnx", "onnx", "ONNX files from `raymine export`"),
    ("optuna", "optuna", '`search = "optuna"` in sweeps'),
    ("ray", "ray", "`raymine sweep --on ray`"),
    ("docs", "sphinx", "`make docs`"),
    ("lightning", "pytorch_lightning", "training with a Lightning Trainer (`raymine.lightning`)"),
)


@dataclass(frozen=True)
class Doctor:
    """Show what this machine supports: versions, cores, memory, GPU, disk, extras, and the backend of each op."""

    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        report = {
            "raymine": {"version": __version__, "python": platform.python_version(), "platform": platform.platform()},
            "packages": {name: _version(name) for name in _PACKAGES},
            "machine": _machine(),
            "cuda": _cuda(),
            "numba": _numba(),
            "backends": _backends(),
            "cache": _cache(),
            "extras": _extras(),
        }
        if self.json:
            output.emit_json(report)
        else:
            _print(report)
        return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _machine() -> dict[str, object]:
    import psutil

    from raymine.machine import cores

    memory = psutil.virtual_memory()
    return {
        "cores": os.cpu_count(),
        "cores_allowed": cores(),
        "memory_total": output.size(memory.total),
        "memory_available": output.size(memory.available),
    }


def _cuda() -> dict[str, object]:
    """Whether CUDA can be used; if not, the reason."""
    import torch

    triton = "installed" if importlib.util.find_spec("triton") else "not installed (it comes with CUDA builds of torch)"
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} is built without CUDA"
        return {"available": False, "reason": reason, "triton": triton}
    if not torch.cuda.is_available():
        return {"available": False, "reason": "torch sees no CUDA device (driver missing or hidden?)", "triton": triton}
    from raymine.kernels.dispatch import triton_problem

    fused = triton_problem()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return {
        "available": True,
        "reason": f"{names}; CUDA {torch.version.cuda}",
        "triton": triton,
        "fused_step": f"no: {fused}" if fused else "yes",
    }


def _numba() -> dict[str, object]:
    """Threads and threading layer of the CPU kernels. The layer is known only after a parallel kernel has run."""
    from raymine.kernels.dispatch import numba_problem

    problem = numba_problem()
    if problem:
        return {"usable": False, "reason": problem}
    import numba

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator,unused-ignore]
    def probe(n: int) -> int:
        total = 0
        for i in numba.prange(n):
            total += i
        return total

    works = probe(100) == 4950
    return {"usable": works, "threads": numba.get_num_threads(), "threading_layer": numba.threading_layer()}


def _backends() -> list[dict[str, str]]:
    import torch

    from raymine.kernels import dispatch

    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [
        {"op": choice.op, "device": choice.device, "backend": choice.backend, "reason": choice.reason}
        for device in devices
        for choice in dispatch.explain(device)
    ]


def _cache() -> dict[str, object]:
    """The cache folder, its size and the free space on its disk. An unusable folder is reported, not raised."""
    from raymine.errors import ResourceError
    from raymine.scenes._cache import cache_root

    try:
        folder = cache_root()
    except ResourceError as error:
        return {"folder": None, "problem": error.message, "fix": error.hint}
    free = shutil.disk_usage(folder).free
    return {"folder": str(folder), "holds": output.size(_folder_size(folder)), "disk_free": output.size(free)}


def _folder_size(folder: Path) -> int:
    """Bytes of all files below `folder`. Files that another process removes meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _extras() -> list[dict[str, object]]:
    return [
        {
            "extra": extra,
            "installed": importlib.util.find_spec(module) is not None,
            "for": purpose,
            "install": f"{Path(sys.executable).name} -m pip install 'raymine[{extra}]'",
        }
        for extra, module, purpose in _EXTRAS
    ]


def _print(report: dict[str, object]) -> None:
    console = output.results()
    for title in ("raymine", "packages", "machine", "cuda", "numba", "cache"):
        section = report[title]
        assert isinstance(section, dict)
        rows = [(str(name).replace("_", " "), _words(value)) for name, value in section.items()]
        console.print(output.table(title, ("what", "value"), rows))
    backends = report["backends"]
    assert isinstance(backends, list)
    choices = [(b["op"], b["device"], b["backend"], b["reason"]) for b in backends]
    console.print(output.table("backends", ("operation", "device", "backend", "why"), choices))
    extras = report["extras"]
    assert isinstance(extras, list)
    states = [(e["extra"], e["for"], "installed" if e["installed"] else f"missing: {e['install']}") for e in extras]
    console.print(output.table("extras", ("extra", "for", "state"), states))


def _words(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
