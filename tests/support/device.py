"""The device of Triton kernels in tests, the marker of tests that need a GPU, and a check against synchronization."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch

TRITON_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The device on which tests run Triton kernels; on the CPU they run in Triton's interpreter."""

requires_gpu = pytest.mark.gpu


def device_of(backend: str) -> str:
    """The device for the tensors of a backend. Skips the test if the backend needs Triton and it is missing."""
    if backend != "gpu":
        return "cpu"
    pytest.importorskip("triton")
    return TRITON_DEVICE


@contextlib.contextmanager
def forbidden_to_wait() -> Iterator[None]:
    """Raise on every operation that synchronizes with the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
