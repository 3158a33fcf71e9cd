"""Saves checkpoints: at once on a CPU, beside training on CUDA.

On CUDA the tensors are copied on the device, which takes less than a millisecond. A thread brings the copy to the host,
hashes and writes it, while the device trains on. One save runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from raymine import checkpoint
from raymine.files import JSON


class Saver:
    """Saves checkpoints of tensors on `device` into `folder`. keep: as in `checkpoint.save`."""

    def __init__(self, folder: Path, keep: int, device: torch.device) -> None:
        self._folder, self._keep, self._device = folder, keep, device
        self._threads = ThreadPoolExecutor(1) if device.type == "cuda" else None
        # Torch hands out the streams of a priority in turn: at another one, it is never that of a graph's capture.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._running: Future[None] | None = None
        self._then: Callable[[], None] = lambda: None

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        scalars: Mapping[str, JSON],
        meta: Mapping[str, JSON],
        then: Callable[[], None],
    ) -> None:
        """Save a checkpoint, after the one before. then: called by this thread when it is on disk (see `settle`)."""
        self.settle()
        if self._threads is None:
            checkpoint.save(self._folder, step, tensors, scalars, meta, keep=self._keep)
            then()
            return
        copies = {name: value.detach().clone() for name, value in tensors.items()}
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        self._then = then
        self._running = self._threads.submit(self._write, step, copies, dict(scalars), dict(meta), ready)

    def poll(self) -> None:
        """Call `then` of a save that has ended. Does not wait. Raises what the save raised."""
        if self._running is not None and self._running.done():
            self.settle()

    def settle(self) -> None:
        """Wait for the running save, if there is one, and call its `then`. Raises what the save raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
            self._then()

    def close(self) -> None:
        """Wait for the running save without looking at its outcome. For runs that end with another error."""
        if self._threads is not None:
            self._threads.shutdown()

    def _write(
        self,
        step: int,
        copies: Mapping[str, Tensor],
        scalars: Mapping[str, JSON],
        meta: Mapping[str, JSON],
        ready: torch.cuda.Event,
    ) -> None:
        assert self._stream is not None
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            checkpoint.save(self._folder, step, copies, scalars, meta, keep=self._keep)
