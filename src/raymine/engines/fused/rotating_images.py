"""Images of which a part is on the device at a time (see `rotation`).

A band in the window is an image of its own to the draw kernel: with its height, its width, and a camera whose principal
point is shifted by the rows above it. Threads read bands ahead of their time into pinned memory and copy them, on a
stream of their own, to where no ray is drawn from. Training waits only if they are late.
"""

from __future__ import annotations

import queue
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import ImageSource, ReadsRows
from raymine.engines.fused.rotation import AHEAD, STEPS, Bands, cut_bands, plan_rotation
from raymine.machine import cores
from raymine.pixels import PixelSampler
from raymine.step import TrainData

_READERS = 6
"""Threads that read bands. Each holds one band in pinned memory."""
_GLANCE = 0.5e-3
"""Seconds between two looks at whether the device still works, while bands are late."""
_CY = 18
"""Row of a rig's table with the vertical principal point."""
_UNITS = 1 << 32
"""Scores of cells are integers of this many a unit, so that their running sum does not depend on its order."""


class RotatingImages:
    """The window of images that rays are drawn from. Attributes as those of `images.DeviceImages`, for its bands.

    waited: seconds in which the device had nothing to do because bands were late.
    """

    def __init__(self, data: TrainData, sampler: PixelSampler, seed: int, memory: int, device: torch.device) -> None:
        self._images, self._device = _rows_of(data.images), device
        self.masked = self._images.masked
        self._bands = cut_bands(data.images.sizes)
        self.rotation = plan_rotation(self._bands, memory, 5 if self.masked else 4, seed)
        rotation, room = self.rotation, self._bands.largest
        self.count = rotation.window
        self.pixels = torch.zeros(rotation.places * room, dtype=torch.int32, device=device)
        self.masks = torch.ones(len(self.pixels) if self.masked else 1, dtype=torch.uint8, device=device)
        self.places = torch.zeros(self.count, 3, dtype=torch.int64, device=device)
        self.background = torch.tensor(data.background or (0.0, 0.0, 0.0), device=device)
        # What the window takes its rows from: shapes and cameras of all bands.
        self._shapes = torch.from_numpy(np.stack((self._bands.height, self._bands.width), 1)).to(device)
        self._cameras = self._cameras_of_bands(data.rig.table)
        self.rig = torch.zeros_like(self._cameras[:, : self.count])
        self.cells = RotatingCells(sampler, self._bands, self.count, device)
        self.waited = 0.0
        self._turn: int | None = None
        self._coming: dict[int, list[Future[None]]] = {}
        # Of another priority than the stream of captures, which torch could hand out again.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        readers = max(1, min(_READERS, cores() - 1))
        self._spare: queue.Queue[_Buffer] = queue.Queue()
        for _ in range(readers):
            self._spare.put(_Buffer(room, self.masked, pinned=self._stream is not None))
        self._pool = ThreadPoolExecutor(readers, "raymine-bands")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    @property
    def bytes(self) -> int:
        """Memory on the device, in bytes."""
        own = (self.pixels, self.masks, self.places, self.rig, self.background, self._shapes, self._cameras)
        return sum(part.nbytes for part in own) + self.cells.bytes

    def place_cameras(self, table: Tensor) -> None:
        """As `images.DeviceImages.place_cameras`, for all bands: also for those that are in the window now."""
        self._cameras.copy_(self._cameras_of_bands(table))
        if self._turn is not None:
            positions = self.rotation.positions(self._turn)
            numbers = np.stack((self.rotation.slots(positions), self.rotation.bands_at(positions)))
            slots, bands = torch.from_numpy(numbers).to(self._device)
            self.rig.index_copy_(1, slots, self._cameras.index_select(1, bands))

    def _cameras_of_bands(self, table: Tensor) -> Tensor:
        """The table of a rig whose image i is band i."""
        cameras = table[:, torch.from_numpy(self._bands.image).to(table.device)].contiguous()
        cameras[_CY] -= torch.from_numpy(self._bands.top).to(cameras)
        return cameras

    def prepare(self, step: int) -> None:
        """Have the bands of this step in the window. The device is told in the order of its stream."""
        turn = step // STEPS
        if turn == self._turn:
            return
        if self._turn is not None and turn == self._turn + 1:
            self._wait_for(self._coming.pop(turn))
            self._show(self.rotation.arriving(turn))
        else:
            self._load(turn)
        self._turn = turn
        # What enters later is copied over what the steps so far have read.
        free = self._now()
        for later in range(turn + 1, turn + AHEAD + 1):
            if later not in self._coming:
                self._coming[later] = self._read(self.rotation.arriving(later), free)

    def _load(self, turn: int) -> None:
        """Fill the whole window: at the start, or after a jump to another step."""
        for future in [future for futures in self._coming.values() for future in futures]:
            if not future.cancel():
                future.result()
        self._coming.clear()
        positions, started = self.rotation.positions(turn), time.perf_counter()
        for future in self._read(positions, self._now()):
            future.result()
        self.waited += time.perf_counter() - started
        self._show(positions)

    def _read(self, positions: np.ndarray, free: torch.cuda.Event | None) -> list[Future[None]]:
        """Start to bring the bands at `positions` to the device. free: passed when their memory may be overwritten."""
        regions, bands = self.rotation.regions(positions), self.rotation.bands_at(positions)
        return [
            self._pool.submit(self._bring, int(band), int(region), free)
            for band, region in zip(bands, regions, strict=True)
        ]

    def _bring(self, band: int, region: int, free: torch.cuda.Event | None) -> None:
        """Read a band and copy it to its region. Returns when it is there."""
        bands, room = self._bands, self._bands.largest
        height, width = int(bands.height[band]), int(bands.width[band])
        buffer = self._spare.get()
        try:
            rows = buffer.pixels[: height * width].numpy().view(np.uint8).reshape(height, width, 4)
            kept = buffer.masks[: height * width].numpy().reshape(height, width) if self.masked else None
            self._images.read_rows(int(bands.image[band]), int(bands.top[band]), rows, kept)
            span = slice(region * room, region * room + height * width)
            if self._stream is None:
                self._copy(buffer, span)
                return
            with torch.cuda.stream(self._stream):
                if free is not None:
                    self._stream.wait_event(free)
                self._copy(buffer, span)
                done = torch.cuda.Event(blocking=True)
                done.record(self._stream)
            done.synchronize()
        finally:
            self._spare.put(buffer)

    def _copy(self, buffer: _Buffer, span: slice) -> None:
        count = span.stop - span.start
        self.pixels[span].copy_(buffer.pixels[:count], non_blocking=True)
        if self.masked:
            self.masks[span].copy_(buffer.masks[:count], non_blocking=True)

    def _now(self) -> torch.cuda.Event | None:
        """An event after everything that training has asked of the device so far."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _wait_for(self, futures: list[Future[None]]) -> None:
        """Wait for bands. Only what goes beyond the steps that the device still has to do counts as waiting."""
        if not all(future.done() for future in futures):
            event, idle = self._now(), None
            while wait(futures, timeout=_GLANCE).not_done:
                if idle is None and (event is None or event.query()):
                    idle = time.perf_counter()
            self.waited += 0.0 if idle is None else time.perf_counter() - idle
        for future in futures:
            future.result()

    def _show(self, positions: np.ndarray) -> None:
        """Let rays be drawn from the bands at `positions`, instead of those in their slots."""
        rotation, room = self.rotation, self._bands.largest
        numbers = np.stack((rotation.slots(positions), rotation.bands_at(positions), rotation.regions(positions)))
        told = torch.from_numpy(numbers)
        if self._stream is not None:
            # From pinned memory, so that the host does not wait for the steps before.
            told = told.pin_memory()
        slots, bands, regions = told.to(self._device, non_blocking=True)
        shapes = self._shapes.index_select(0, bands)
        self.places.index_copy_(0, slots, torch.cat((regions[:, None] * room, shapes), 1))
        self.rig.index_copy_(1, slots, self._cameras.index_select(1, bands))
        self.cells.show(slots, bands, shapes)


class RotatingCells:
    """The image cells of the window, as `images.DevicePixels` has them for all images.

    Each band has cells of its own, from its first row on. One has the score of the image's cell at its middle. In the
    window a cell's probability is its share of all scores there, and its weight makes up for that.
    """

    def __init__(self, sampler: PixelSampler, bands: Bands, window: int, device: torch.device) -> None:
        score, config = sampler.score, sampler.config
        self.scored = score is not None
        self.weighed = self.scored and config.reweight
        self._coverage = config.coverage
        self.coverage = torch.tensor([config.coverage], dtype=torch.float64, device=device)
        self.side, self.cells = 1, 0
        self.running, self.weights = torch.zeros(1, dtype=torch.float64, device=device), torch.zeros(1, device=device)
        self.boxes = self.firsts = self._scores = self._all = torch.zeros(1, dtype=torch.int32, device=device)
        if score is None:
            return
        self.side = side = score.cells.side
        columns, rows = -(-bands.width // side), -(-bands.height // side)
        self._each = each = int((columns * rows).max())
        self.cells = window * each
        density = np.diff(score.table.numpy()) / score.cells.share  # the mean over uniform draws is 1
        self._all = torch.from_numpy(_scores(density, score.cells.first, score.cells.columns, bands, side, each))
        self._all = self._all.to(device)
        self._scores = torch.zeros(window, each, dtype=torch.int64, device=device)
        self._areas = torch.zeros(window, each, dtype=torch.int64, device=device)
        self.running = torch.zeros(self.cells + 1, dtype=torch.float64, device=device)
        self.weights = torch.ones(self.cells, device=device)
        self.boxes = torch.zeros(window, each, 5, dtype=torch.int32, device=device)
        self.firsts = torch.zeros(window, 2, dtype=torch.int32, device=device)

    @property
    def bytes(self) -> int:
        """Memory on the device, in bytes."""
        return sum(part.nbytes for part in (self.running, self.weights, self.boxes, self._scores, self._all))

    @property
    def arguments(self) -> tuple[Tensor | int, ...]:
        """As `DevicePixels.arguments`."""
        tables = (self.coverage, self.running, self.boxes, self.weights, self.firsts)
        return (*tables, self.side, self.cells, self.cells.bit_length())

    def show(self, slots: Tensor, bands: Tensor, shapes: Tensor) -> None:
        """Put the cells of bands [n] into slots [n]. shapes [n, 2]: their heights and widths."""
        if not self.scored:
            return
        height, width = shapes[:, :1], shapes[:, 1:]
        columns = (width + self.side - 1) // self.side
        index = torch.arange(self._each, device=slots.device)[None]
        top, left = index // columns * self.side, index % columns * self.side
        # Unused places have no area, and a score of 0: nothing is drawn there.
        tall = (height - top).clamp(0, self.side)
        wide = torch.minimum(width - left, width * 0 + self.side)
        which = slots[:, None].expand(-1, self._each)
        self.boxes.index_copy_(0, slots, torch.stack((which, top, left, tall, wide), 2).int())
        self.firsts.index_copy_(0, slots, torch.cat((slots[:, None] * self._each, columns), 1).int())
        self._areas.index_copy_(0, slots, tall * wide * _UNITS // (height * width))
        self._scores.index_copy_(0, slots, self._all.index_select(0, bands))
        self._draw_by()

    def _draw_by(self) -> None:
        """Probabilities and weights of all cells of the window. A cell's even share is its area over those of all."""
        chosen = torch.where(self._scores.sum() > 0, self._scores, self._areas).reshape(-1)
        total = chosen.sum().double()
        self.running[1:].copy_(chosen.cumsum(0).double() / total)
        if self.weighed:
            even = self._areas.reshape(-1).double() / (_UNITS * len(self._areas))
            scored = chosen.double() / total
            mixed = even * self._coverage + scored * (1 - self._coverage)
            self.weights.copy_(torch.where(mixed > 0, even / mixed, 1.0))


def _scores(
    density: np.ndarray, first: np.ndarray, columns: np.ndarray, bands: Bands, side: int, each: int
) -> np.ndarray:
    """[B, each] int64: the score of each cell of a band times its share of the band, in `_UNITS`."""
    found = np.zeros((len(bands), each), np.int64)
    for band, image in enumerate(bands.image):
        height, width, top = bands.height[band], bands.width[band], bands.top[band]
        across, rows = columns[image], -(-height // side)
        starts = np.arange(rows) * side
        tall = np.minimum(side, height - starts)
        row = (top + starts + tall // 2) // side
        wide = np.minimum(side, width - np.arange(across) * side)
        score = density[first[image] + row[:, None] * across + np.arange(across)]
        share = tall[:, None] * wide / (height * width)
        found[band, : rows * across] = (score * share * _UNITS).astype(np.int64).reshape(-1)
    return found


class _Buffer:
    """Host memory for the pixels of a band, [n] int32, and its mask, [n] uint8."""

    def __init__(self, pixels: int, masked: bool, *, pinned: bool) -> None:
        self.pixels = torch.empty(pixels, dtype=torch.int32, pin_memory=pinned)
        self.masks = torch.empty(pixels if masked else 0, dtype=torch.uint8, pin_memory=pinned)


def image_bytes(data: TrainData) -> int:
    """Bytes that all images and their masks take on a device."""
    return int(data.images.sizes.prod(1).sum()) * (5 if _rows_of(data.images).masked else 4)


def _rows_of(images: ImageSource) -> ReadsRows:
    return images if isinstance(images, ReadsRows) else _Sliced(images)


class _Sliced:
    """Rows of a source that gives whole images."""

    def __init__(self, images: ImageSource) -> None:
        self._images = images
        self.masked = any(images.mask(i) is not None for i in range(len(images.sizes)))

    def read_rows(self, index: int, top: int, pixels: np.ndarray, mask: np.ndarray | None) -> None:
        bottom = top + len(pixels)
        pixels[:] = self._images.image(index)[top:bottom]
        if mask is not None:
            whole = self._images.mask(index)
            mask[:] = 255 if whole is None else whole[top:bottom]
