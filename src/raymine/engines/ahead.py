"""Compiling the kernels of a run, or loading them from the cache on disk, before its images are there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Bounds
from raymine.engines.fused.problem import problem_with
from raymine.engines.phased import phases_of
from raymine.rays import CameraRig
from raymine.step import TrainConfig, TrainData, create_state

_log = logging.getLogger(__name__)


class _Placeholders:
    """An image of one black pixel for each camera. An `ImageSource`."""

    def __init__(self, count: int, masked: bool) -> None:
        self.sizes = np.ones((count, 2), np.int64)
        self._mask = np.full((1, 1), 255, np.uint8) if masked else None

    def image(self, index: int) -> np.ndarray:
        return np.zeros((1, 1, 4), np.uint8)

    def mask(self, index: int) -> np.ndarray | None:
        return self._mask

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def compile_ahead(
    config: TrainConfig, rig: CameraRig, bounds: Bounds, masked: bool, device: torch.device
) -> Callable[[], None]:
    """Start to compile the kernels of the fused step in a thread. Returns a function that waits for its end.

    masked: whether images have masks, for which there is another kernel. Sizes and contents of the images do not
    matter. If the model cannot be fused, not even in the last phase of the run, nothing is started. A failure is left
    to `Engine.warm_up`, which meets it too.
    """
    config = phases_of(config)[-1].config(config)
    if problem_with(config, device.type, training=True):
        return lambda: None

    def work() -> None:
        from raymine.engines.fused.engine import FusedEngine

        data = TrainData(rig, _Placeholders(len(rig), masked), bounds)
        # The current device is that of a thread; Triton compiles for it.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            FusedEngine(create_state(config, data, seed=0, device=device), data).compile_kernels()

    threads = ThreadPoolExecutor(1)
    running = threads.submit(work)
    threads.shutdown(wait=False)

    def wait() -> None:
        error = running.exception()
        if error is not None:
            _log.debug("Compiling ahead failed: %s", error)

    return wait
