"""What a command begins in threads before it imports torch, which takes one to two seconds of one core."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
import threading
from pathlib import Path

from raymine.files import begin_digest
from raymine.run_files import CHECKPOINTS, checkpoint_paths, list_steps


def open_cuda(device: str) -> None:
    """Begin to open the first CUDA device, if the command may use it: `device` is auto or cuda.

    torch finds it open, where it would wait half a second for the driver. Without a driver or a device nothing happens;
    what fails here fails again where torch opens the device, and is reported there.
    """
    if device in ("auto", "cuda") and "torch" not in sys.modules and _computes_on_cuda():
        threading.Thread(target=_open_first_device, daemon=True).start()


def read_checkpoint(run: Path) -> None:
    """Begin to verify the latest checkpoint of a run, whose tensors are hashed at 0.7 GB/s."""
    folder = run / CHECKPOINTS
    steps = list_steps(folder)
    if steps:
        begin_digest(checkpoint_paths(folder, steps[-1]).tensors)


def _computes_on_cuda() -> bool:
    """Whether torch is built for CUDA and Triton is there, without which commands choose the CPU. Imports neither."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or importlib.util.find_spec("triton") is None:
        return False
    return (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists()


def _open_first_device() -> None:
    # A call of the driver may be missing, or its library be another one of that name.
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            # The context that torch uses too. It is closed with the process.
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
