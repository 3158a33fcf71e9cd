"""The places where stages run at the same time: one for each GPU, or some on the CPU."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from raymine.machine import cores


@dataclass(frozen=True)
class Place:
    """name: for messages. environment: variables for a process that runs there."""

    name: str
    environment: dict[str, str]


def visible_gpus() -> list[str]:
    """The CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them. Does not import torch."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() and name.strip() != "-1"]
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(i) for i, _ in enumerate(line for line in done.stdout.splitlines() if line.startswith("GPU "))]


def places(jobs: int | None, gpus: list[str] | None = None) -> list[Place]:
    """Where stages run. jobs: how many at a time; None is one for each GPU, or one on a CPU.

    More jobs than GPUs share them in turn. On a CPU, jobs share the cores.
    """
    gpus = visible_gpus() if gpus is None else gpus
    count = jobs or len(gpus) or 1
    if gpus:
        return [
            Place(f"cuda:{gpus[i % len(gpus)]}", {"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]}) for i in range(count)
        ]
    if count == 1:
        return [Place("cpu", {})]
    share = str(max(1, cores() // count))
    return [Place("cpu", {"OMP_NUM_THREADS": share, "NUMBA_NUM_THREADS": share}) for _ in range(count)]
