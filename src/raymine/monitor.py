"""Samples what this process takes of the machine, on a thread of its own and at a low rate.

A sample takes about a millisecond, every few seconds. Whatever fails while it is taken (no GPU, no driver, a process
without rights) is left out of it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from raymine.machine import cores, free_memory

PERIOD = 10.0
"""Seconds between two samples."""


@dataclass(frozen=True)
class Sample:
    """The machine at one moment. Shares are in 0..1, sizes in bytes; None is unknown.

    cpu: this process, of the cores that it may use, since the last sample. others: all other processes, of all cores.
    memory: held by this process. free: main memory that is free. gpu: share of time in which the GPU was busy.
    gpu_memory, gpu_total: held by all processes of the GPU, and all that it has.
    """

    cpu: float | None = None
    others: float | None = None
    memory: int | None = None
    free: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    gpu_total: int | None = None


class Monitor:
    """Takes a sample every `period` seconds, until it is closed. gpu: index of the CUDA device; None for none."""

    def __init__(self, gpu: int | None = None, period: float = PERIOD) -> None:
        self._gpu, self._period = gpu, period
        self._latest: Sample | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="raymine-monitor", daemon=True)
        self._thread.start()

    def take(self) -> Sample | None:
        """The latest sample, once; None if there is no new one. Never waits."""
        sample, self._latest = self._latest, None
        return sample

    def close(self) -> None:
        """Stop sampling. A sample that is being taken is not waited for."""
        self._stopped.set()

    def _work(self) -> None:
        try:
            reader = _Reader(self._gpu)
            while not self._stopped.wait(self._period):
                self._latest = reader.sample()
        except Exception:  # a monitor that cannot work is no reason to stop anything
            return


class _Reader:
    def __init__(self, gpu: int | None) -> None:
        import psutil

        self._psutil: Any = psutil
        self._process = psutil.Process()
        self._nvml, self._handle = _open_gpu(gpu)
        self._measure_cpu()

    def _measure_cpu(self) -> tuple[float, float]:
        """Shares of this process and of all others since the last call."""
        own = self._process.cpu_percent() / 100.0
        whole, count = self._psutil.cpu_percent() / 100.0, self._psutil.cpu_count() or 1
        return own / cores(), max(0.0, whole - own / count)

    def sample(self) -> Sample:
        found: dict[str, Any] = {}
        for part in (self._cpu, self._memory, self._device):
            try:
                found |= part()
            except Exception:  # noqa: PERF203 (NVML and psutil raise errors of their own)
                continue
        return Sample(**found)

    def _cpu(self) -> dict[str, Any]:
        own, others = self._measure_cpu()
        return {"cpu": round(own, 3), "others": round(others, 3)}

    def _memory(self) -> dict[str, Any]:
        return {"memory": int(self._process.memory_info().rss), "free": free_memory()}

    def _device(self) -> dict[str, Any]:
        if self._nvml is None:
            return {}
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100.0
        return {"gpu": busy, "gpu_memory": int(memory.used), "gpu_total": int(memory.total)}


def _open_gpu(index: int | None) -> tuple[Any, Any]:
    """NVML and the handle of a device; (None, None) without a GPU, a driver or the package."""
    if index is None:
        return None, None
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, _handle(pynvml, index)
    except Exception:  # the package raises many kinds of errors where there is no driver
        return None, None


def _handle(nvml: Any, index: int) -> Any:
    """The handle of a CUDA device. NVML counts all devices, CUDA only those that it may see."""
    import os

    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if index < len(visible):
        name = visible[index]
        if not name.isdigit():
            return nvml.nvmlDeviceGetHandleByUUID(name.encode())
        index = int(name)
    return nvml.nvmlDeviceGetHandleByIndex(index)
