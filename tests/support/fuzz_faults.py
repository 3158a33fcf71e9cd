"""Cases of callables with known faults, for the test of the fuzz harness itself."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from support.fuzz import Args, Case, Size


def _make(rng: torch.Generator, size: Size) -> Args:
    return {"values": torch.rand(size.samples, generator=rng)}


def _careful(values: Tensor) -> Tensor:
    if values.dtype != torch.float32 or values.ndim != 1 or values.device.type != "cpu":
        raise ConfigError(f"`values` must be float32 of shape [n] on the CPU, got {values.dtype}.")
    return values * 2


def _crashes_on_nan(values: Tensor) -> Tensor:
    out = _careful(values)
    if bool(values.isnan().any()):
        os.kill(os.getpid(), signal.SIGSEGV)
    return out


def _hangs_on_nan(values: Tensor) -> Tensor:
    out = _careful(values)
    if bool(values.isnan().all()) and len(values):
        time.sleep(3600)
    return out


def _differs_from_its_reference(values: Tensor) -> Tensor:
    forced = dispatch.explain_one("select", "cpu").backend == "reference"
    return _careful(values) + (1.0 if forced else 0.0)


def _writes_next_to_its_argument(values: Tensor) -> Tensor:
    out = _careful(values)
    if len(values):
        ctypes.memset(values.data_ptr() + 4 * len(values), 0, 4)
    return out


def _changes_its_argument(values: Tensor) -> Tensor:
    _careful(values)
    return values.add_(1)


def _raises_what_torch_says(values: Tensor) -> Tensor:
    return _careful(values).reshape(23)


_FAULTS = (
    _careful,
    _crashes_on_nan,
    _hangs_on_nan,
    _differs_from_its_reference,
    _writes_next_to_its_argument,
    _changes_its_argument,
    _raises_what_torch_says,
)
CASES = [Case((f"support.fuzz_faults.{run.__name__}",), _make, run) for run in _FAULTS]
