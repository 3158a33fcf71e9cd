"""Where tests run Triton kernels, and the marker of tests that need a GPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest
import torch

TRITON_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where tests run Triton kernels."""

requires_gpu = pytest.mark.gpu


def device_of(backend: str) -> str:
    """Where the tensors of a backend are to be."""
    if backend != "gpu":
        return "cpu"
    pytest.importorskip("triton")
    return TRITON_DEVICE


@contextlib.contextmanager
def forbidden_to_wait() -> Iterator[None]:
    """An operation that waits for the device raises."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
