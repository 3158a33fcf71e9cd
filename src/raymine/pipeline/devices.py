"""The places where stages run at the same time: one for each GPU or several by free memory, or some on the CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from raymine.errors import RunError
from raymine.machine import cores

GIB = 1 << 30
LOST = 1000
"""The exit code of a command whose machine is gone; no process of a system ends with it."""


class Process(Protocol):
    """A command that was started, with these parts of `subprocess.Popen`."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


Start = Callable[[list[str], Path, Path, Path], Process]
"""Starts the words of `raymine.pipeline.child` in a folder, with files for what is printed and for the log."""


@dataclass(frozen=True, eq=False)
class Place:
    """name: for messages. environment: variables for a process that runs there.

    prefix: words before the command, such as those of srun. gpu: as CUDA_VISIBLE_DEVICES names it, if the place
    is on a GPU of this machine. memory: bytes that must be free on it. start: what starts commands there, if that is
    not this process.
    """

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    gpu: str | None = None
    memory: float = 0.0
    start: Start | None = None


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


def free_gpu_memory(gpu: str) -> float | None:
    """Bytes that are free on a GPU; None where the driver does not tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
            if gpu.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
        )
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
    except Exception:  # the package raises many kinds of errors where there is no driver
        return None


def places(jobs: int | None, gpus: list[str] | None = None, memory: float | None = None) -> list[Place]:
    """Where stages run. jobs: how many at a time; None is one for each GPU, or one on a CPU.

    More jobs than GPUs share them in turn. On a CPU, jobs share the cores. memory: bytes of GPU memory that a process
    needs; a GPU then takes as many as fit into what is free on it, and at most `jobs` run in all.
    """
    gpus = visible_gpus() if gpus is None else gpus
    if gpus and memory:
        return _by_memory(jobs, gpus, memory)
    count = jobs or len(gpus) or 1
    if gpus:
        return [_on_gpu(gpus[i % len(gpus)], 0.0) for i in range(count)]
    if count == 1:
        return [Place("cpu")]
    share = str(max(1, cores() // count))
    return [Place("cpu", {"OMP_NUM_THREADS": share, "NUMBA_NUM_THREADS": share}) for _ in range(count)]


def best_place(free: Sequence[Place], used: Sequence[Place]) -> Place | None:
    """The place to use next: on the GPU with the fewest of our processes, then with the most free memory.

    used: the places where processes run. None if nothing is free, or if others have taken the memory that it needs.
    """
    if len({place.gpu for place in free}) < 2 and not any(place.memory for place in free):
        return free[0] if free else None
    busy = {place.gpu: sum(other.gpu == place.gpu for other in used) for place in free}
    room = {gpu: free_gpu_memory(gpu) if gpu is not None else None for gpu in busy}
    able = [place for place in free if (room[place.gpu] is None or (room[place.gpu] or 0.0) >= place.memory)]
    return min(able, key=lambda place: (busy[place.gpu], -(room[place.gpu] or 0.0)), default=None)


def _by_memory(jobs: int | None, gpus: list[str], memory: float) -> list[Place]:
    room = {gpu: free_gpu_memory(gpu) for gpu in gpus}
    fits = {gpu: 1 if free is None else int(free // memory) for gpu, free in room.items()}
    # One on each GPU first, then a second one on each, and so on.
    found = [_on_gpu(gpu, memory) for k in range(max(fits.values())) for gpu in gpus if fits[gpu] > k]
    if not found:
        most = max(free or 0.0 for free in room.values())
        raise RunError(
            f"No GPU has {memory / GIB:g} GiB of free memory; the most is {most / GIB:.1f} GiB.",
            hint="Wait for other programs to end, or lower `memory`.",
        )
    return found[:jobs] if jobs else found


def _on_gpu(gpu: str, memory: float) -> Place:
    # The driver numbers GPUs by their bus, where CUDA begins with the fastest. Numbers of the user are CUDA's.
    order = {} if "CUDA_VISIBLE_DEVICES" in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return Place(f"cuda:{gpu}", {"CUDA_VISIBLE_DEVICES": gpu, **order}, gpu=gpu, memory=memory)
