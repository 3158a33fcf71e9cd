"""`manifest.json`: the origin, the environment and the outcome of a run, enough to repeat it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from raymine._version import __version__
from raymine.files import JSON

if TYPE_CHECKING:
    import torch

Status = Literal["running", "finished", "stopped", "failed"]
_PACKAGES = ("torch", "numpy", "numba", "pillow", "safetensors")


@dataclass(frozen=True)
class Environment:
    """The software and hardware of a run. threads: number of torch threads, which affects the order of CPU sums.

    source: `source_digest`, which tells changes of the code apart that no commit or version does; None for runs of
    earlier versions.
    """

    raymine: str
    commit: str | None
    python: str
    platform: str
    packages: dict[str, str]
    device: str
    threads: int
    source: str | None = None


@dataclass(frozen=True)
class Attempt:
    """One process that trained the run: command line, first step, times (ISO 8601, UTC), environment.

    wall, first_step: wall-clock seconds from the start of the command to its last checkpoint, and to the end of its
    first steps. stages: the seconds of each stage; their sum is `wall`. peak_memory, peak_device_memory: the most bytes
    of main memory that the process held, and of device memory that torch held; None where unknown. processes: how many
    trained together, this being the first.
    """

    command: tuple[str, ...]
    pid: int
    from_step: int
    started: str
    environment: Environment
    ended: str | None = None
    wall: float | None = None
    first_step: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    peak_memory: int | None = None
    peak_device_memory: int | None = None
    processes: int = 1


@dataclass(frozen=True)
class Manifest:
    """The description of a run. Digests identify the description of the scene and its pixels.

    horizons: learning-rate horizons as (step, total steps), in order. rollbacks: (at step, back to step). With these
    and `step`, a time-limited run can be repeated exactly.

    PSNR in dB: `train_psnr` is the last recorded training value. `test_psnr` and `held_out_psnr` are quick evaluations
    of the model at `step`, on test views or on views held out from training; None if there was none at that step.
    `quick_protocol`: what these two were measured on, with a digest; None for runs of earlier versions.
    `best_step` and `best_held_out_psnr` describe the best checkpoint, which only held-out views select. `hard_images`:
    training images that stayed hard while the others improved, when the run has finished. `train_images`: their number;
    None for runs of earlier versions.
    """

    name: str
    scene: str
    scene_digest: str
    image_digest: str
    recipe: str
    seed: int
    status: Status
    started: str
    environment: Environment
    ended: str | None = None
    step: int = 0
    elapsed: float = 0.0
    train_psnr: float | None = None
    test_psnr: float | None = None
    held_out_psnr: float | None = None
    quick_protocol: dict[str, JSON] | None = None
    best_step: int | None = None
    best_held_out_psnr: float | None = None
    hard_images: tuple[str, ...] = ()
    horizons: tuple[tuple[int, int], ...] = ()
    rollbacks: tuple[tuple[int, int], ...] = ()
    error: str | None = None
    attempts: tuple[Attempt, ...] = field(default=())
    train_images: int | None = None


def upgraded(data: JSON) -> JSON:
    """The JSON of a manifest, converted if an older version wrote it.

    `psnr` was the last training value. `best_psnr` was the best of several evaluations on test views. It is left out,
    because it is not a score of the final model.
    """
    if not isinstance(data, dict) or not {"psnr", "best_psnr"} & data.keys():
        return data
    kept = {key: value for key, value in data.items() if key not in ("psnr", "best_psnr")}
    return {"train_psnr": data.get("psnr"), **kept}


def utc_now() -> str:
    """The current time in UTC as ISO 8601, in whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def describe_environment(device: torch.device) -> Environment:
    """The environment of this process, with `device`."""
    import torch

    return Environment(
        raymine=__version__,
        commit=_commit(),
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: _version_of(name) for name in _PACKAGES},
        device=_device_name(device),
        threads=torch.get_num_threads(),
        source=source_digest()[:12],
    )


@cache
def source_digest() -> str:
    """sha256 in hex of the version and of every source file of raymine, read once for a process."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@cache
def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        import torch

        return f"cuda: {torch.cuda.get_device_name(device)}"
    name = platform.processor()
    try:
        # On Linux `platform.processor` gives only the architecture.
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{device.type}: {name or platform.machine()}, {os.cpu_count()} cores"


@cache
def _commit() -> str | None:
    """The commit of the checkout that raymine runs from (`-dirty` with local changes); None for an installed copy."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
