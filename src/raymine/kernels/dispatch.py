"""The choice of a backend for each op. It is logged once with its reason, and `force` overrides it in a `with` block.

reference   plain torch; runs on any device and defines the op
cpu         Numba kernels on all cores
gpu         Triton kernels
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Literal

import torch

from raymine.errors import ConfigError

Backend = Literal["reference", "cpu", "gpu"]

BACKENDS: dict[str, tuple[Backend, ...]] = {
    "philox": ("reference", "cpu", "gpu"),
    "hash_grid": ("reference", "cpu", "gpu"),
    "march": ("reference", "cpu", "gpu"),
    "traverse": ("reference", "cpu", "gpu"),
    "scan": ("reference", "cpu", "gpu"),
    "composite": ("reference", "cpu", "gpu"),
    "volume": ("reference", "gpu"),
    "resample": ("reference", "gpu"),
    "judge": ("reference", "cpu", "gpu"),
    "select": ("reference", "cpu", "gpu"),
    "adam": ("reference", "cpu", "gpu"),
    "mlp": ("reference", "gpu"),
    "harmonics": ("reference", "cpu", "gpu"),
    "ngp_step": ("reference", "cpu"),
    "planes": ("reference", "cpu", "gpu"),
    "voxels": ("reference", "cpu", "gpu"),
}
"""The backends of each op. An op that lists a backend must pass the comparison tests on it."""

kernel_lock = threading.RLock()
"""Held while a kernel runs. A Numba kernel uses every core, and one of Numba's thread pools allows only one caller."""

_forced: ContextVar[Backend | None] = ContextVar("raymine_backend", default=None)
_log = logging.getLogger("raymine.kernels")


@dataclass(frozen=True)
class Choice:
    """The backend of one op on one device, and the reason for it."""

    op: str
    device: str
    backend: Backend
    reason: str


MOST_THREADS = 1024


@contextmanager
def force(backend: Backend) -> Iterator[None]:
    """Run every op inside the block on one backend; an op that lacks it raises ConfigError."""
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


def _check_threads() -> None:
    """Refuse what Numba does not: it cannot be imported with fewer threads than 1, ignores a text, and crashes with
    100,000 threads."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "").strip()
    possible = threads.isdecimal() and threads.isascii() and len(threads) < 10 and 1 <= int(threads) <= MOST_THREADS
    if threads and not possible:
        raise ConfigError(
            f"the environment variable NUMBA_NUM_THREADS must be a whole number between 1 and {MOST_THREADS}, got "
            f"{threads[:40]!r}.",
            hint="Unset it to use every core.",
        )


_check_threads()


def choose(op: str, device: torch.device) -> Backend:
    """The backend that runs `op` on tensors on `device`. ConfigError if a forced backend cannot."""
    if _forced.get() is not None:
        return explain_one(op, device.type).backend
    return _usual(op, device.type)


def has_gpu_kernel(op: str, device: torch.device) -> bool:
    """Whether `op` runs as a Triton kernel on `device`. False, not an error, if a backend is forced that it lacks."""
    forced = _forced.get()
    return (forced is None or forced == "gpu") and choose(op, device) == "gpu"


@cache
def _usual(op: str, device: str) -> Backend:
    """The choice without `force`; logged on the first call for an op and a device."""
    choice = explain_one(op, device)
    _log.debug("%s on %s runs on `%s`: %s", op, choice.device, choice.backend, choice.reason)
    return choice.backend


def explain_one(op: str, device: str) -> Choice:
    """The choice for one op, with its reason, without running it."""
    offered = BACKENDS[op]
    forced = _forced.get()
    if forced is not None:
        if forced not in offered:
            raise ConfigError(f"`{op}` has no backend `{forced}`; it offers {', '.join(offered)}.")
        if forced == "cpu" and device != "cpu":
            raise ConfigError(f"`{op}`: backend `cpu` cannot run on {device} tensors. Move them to the CPU first.")
        if forced == "gpu" and device == "cpu" and not interpreted():
            raise ConfigError(f"`{op}`: backend `gpu` cannot run on CPU tensors, except in Triton's interpreter.")
        return Choice(op, device, forced, "forced")
    if device == "cpu":
        if "cpu" not in offered:
            return Choice(op, device, "reference", "no Numba kernel for this op")
        problem = numba_problem()
        if problem:
            return Choice(op, device, "reference", problem)
        return Choice(op, device, "cpu", "Numba kernels use all cores")
    if device != "cuda":
        return Choice(op, device, "reference", f"no kernels for {device} tensors")
    if "gpu" not in offered:
        return Choice(op, device, "reference", "no Triton kernel for this op yet")
    problem = triton_problem()
    if problem:
        return Choice(op, device, "reference", problem)
    return Choice(op, device, "gpu", "Triton kernel")


@cache
def kernels(op: str, backend: Backend) -> ModuleType:
    """The module with the kernels of an op. It is imported on its first use, because that needs Numba or Triton."""
    return importlib.import_module(f"raymine.kernels.{op}.{backend}")


def explain(device: str = "cpu") -> list[Choice]:
    """The choice for every op on `device`."""
    return [explain_one(op, device) for op in BACKENDS]


def interpreted() -> bool:
    """Whether Triton's interpreter runs the Triton kernels on CPU tensors. Tests use it on machines without a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@cache
def triton_problem() -> str:
    """Why Triton kernels cannot run on the first CUDA device, or an empty string."""
    # First, because importing Triton takes 0.2 s, which runs on a CPU need not wait for.
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton cannot be imported ({error})"
    capability = torch.cuda.get_device_capability()
    if capability < (7, 5):
        return "Triton kernels need compute capability 7.5 or newer, this device has {}.{}".format(*capability)
    return ""


@cache
def numba_problem() -> str:
    """Why Numba cannot be used here, or an empty string."""
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"Numba cannot be imported ({error})"
    return ""
