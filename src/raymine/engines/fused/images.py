"""The images of a scene on the device, so that a step can draw pixels without the host."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

import numpy as np
import torch

from raymine.contracts import ImageSource
from raymine.machine import cores
from raymine.pixels import PixelSampler
from raymine.step import TrainData

_UPLOADS = 4
"""Images that are copied to the device at once."""


class _Pixels:
    """The pixels of a source of images on a device: pixels, masks and places as in `DeviceImages`."""

    def __init__(self, source: ImageSource, device: torch.device) -> None:
        self.source = source
        sizes = source.sizes
        areas = sizes.prod(1)
        starts = np.concatenate(([0], np.cumsum(areas)))
        masks = [source.mask(i) for i in range(len(sizes))]
        self.masked = any(mask is not None for mask in masks)
        self.places = torch.from_numpy(np.column_stack((starts[:-1], sizes)).astype(np.int64)).to(device)
        self.pixels = torch.empty(int(areas.sum()), dtype=torch.int32, device=device)
        self.masks = torch.ones(len(self.pixels) if self.masked else 1, dtype=torch.uint8, device=device)

        def upload(i: int) -> None:
            span = slice(int(starts[i]), int(starts[i + 1]))
            rgba = np.ascontiguousarray(source.image(i)).reshape(-1, 4)
            self.pixels[span].copy_(torch.from_numpy(rgba.view(np.int32).reshape(-1)))
            mask = masks[i]
            if mask is not None:
                self.masks[span].copy_(torch.from_numpy(np.ascontiguousarray(mask).reshape(-1)))

        # Reading and copying release the GIL. Few threads saturate the copy, and each holds one image.
        with ThreadPoolExecutor(min(_UPLOADS, cores())) as pool:
            list(pool.map(upload, range(len(sizes))))


_loaded: WeakValueDictionary[tuple[int, str], _Pixels] = WeakValueDictionary()
"""Pixels that are on a device, by the identity of their source, which they keep alive, and the device."""


def _pixels_of(source: ImageSource, device: torch.device) -> _Pixels:
    """The pixels of a source on a device, loaded once for all that use them: engines of several phases do."""
    key = id(source), str(device)
    found = _loaded.get(key)
    if found is None:
        found = _loaded[key] = _Pixels(source, device)
    return found


class DeviceImages:
    """pixels [P] int32: RGBA of all images, one after another. places [I, 3] int64: first pixel, height, width.
    count: I.

    masks [P] uint8: 0 where a pixel is to be ignored; [1] if no image has a mask (then `masked` is False). These are
    shared by all that hold images of the same source. rig, background: see `kernels.ngp_step.gpu_draw`.
    """

    def __init__(self, data: TrainData, device: torch.device) -> None:
        self._shared = shared = _pixels_of(data.images, device)
        self.count, self.masked = len(shared.places), shared.masked
        self.pixels, self.masks, self.places = shared.pixels, shared.masks, shared.places
        # A copy of its own, since cameras may be placed anew.
        self.rig = data.rig.table.clone(memory_format=torch.contiguous_format)
        self.background = torch.tensor(data.background or (0.0, 0.0, 0.0), device=device)
        self.waited = 0.0

    def place_cameras(self, table: torch.Tensor) -> None:
        """Give the images other cameras: the `table` of a rig. They are written into the memory of the present ones."""
        self.rig.copy_(table)

    def prepare(self, step: int) -> None:
        """Nothing to do: all images are there at every step."""

    @property
    def bytes(self) -> int:
        """Memory on the device, in bytes."""
        return sum(part.nbytes for part in (self.pixels, self.masks, self.places, self.rig, self.background))


class DevicePixels:
    """The image cells that rays are drawn from, in the form of `kernels.ngp_step.gpu_pixels.draw_by_score`.

    scored: whether rays are drawn by cell. weighed: whether rays have weights. Unused tensors are placeholders.
    """

    def __init__(self, sampler: PixelSampler, device: torch.device) -> None:
        score, config = sampler.score, sampler.config
        self.scored = score is not None
        self.weighed = self.scored and config.reweight
        self.coverage = torch.tensor([config.coverage], dtype=torch.float64, device=device)
        self.side, self.cells = 1, 0
        self.running, self.weights = torch.zeros(1, dtype=torch.float64, device=device), torch.zeros(1, device=device)
        self.boxes = self.firsts = torch.zeros(1, dtype=torch.int32, device=device)
        if score is None:
            return
        cells = score.cells
        self.side, self.cells = cells.side, len(cells)
        every = np.arange(len(cells))
        self.running = score.table.to(device)
        self.boxes = torch.from_numpy(np.stack(cells.boxes(every), 1).astype(np.int32)).to(device)
        self.weights = torch.from_numpy(score.weight(every, config.coverage)).float().to(device)
        self.firsts = torch.from_numpy(np.stack((cells.first, cells.columns), 1).astype(np.int32)).to(device)

    @property
    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        """The arguments `coverage` to `halvings` of the kernel, in its order."""
        tables = (self.coverage, self.running, self.boxes, self.weights, self.firsts)
        return (*tables, self.side, self.cells, self.cells.bit_length())
