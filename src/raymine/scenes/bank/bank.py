"""The image bank: the images of a scene, decoded once and stored in one file of uint8, the pack.

    with open_bank(scene, scene.of_split("train")) as bank:
        rgba, weight = bank.gather(image, y, x)

Images are packed on first use, and again only if they have changed. Packing can be killed at any moment, and then
continues where it stopped. Several processes may open the same bank at once; one of them packs. Memory stays within a
given budget for any number and size of images.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from raymine.caches import Use, evict, parse_size
from raymine.contracts import Scene
from raymine.errors import ConfigError, ResourceError
from raymine.files import UnreadableFile
from raymine.machine import cores
from raymine.quantities import size
from raymine.scenes._cache import cache_path, locked, storage_error, writable_folder
from raymine.scenes.bank.index import Content, Index, read_index, write_index
from raymine.scenes.bank.io import open_for_reading, slot_crc
from raymine.scenes.bank.pack import DEFAULT_BUDGET, LEAST_BUDGET, Job, largest_decode, make_pack, reading_budget
from raymine.scenes.bank.reader import PackReader
from raymine.scenes.bank.sources import Source, selection_key, sources_of

_log = logging.getLogger(__name__)

# When a bank is opened, about this many bytes of its pack, spread over its slots, are checked by checksum (0.1 s).
_CHECKED_BYTES = 128 << 20


class ImageBank:
    """Decoded pixels of I images, in the order of the frames given to `open_bank`. A `contracts.ImageSource`.

    Use `open_bank` to get one. Several threads may read at once. Close it, or use it in a `with` block.
    """

    def __init__(self, pack: PackReader, index: Index, use: Use | None = None) -> None:
        self._pack = pack
        self._use = use
        self.waited = 0.0
        """Seconds that callers have waited in `gather`."""
        self._index = index
        self._table = np.array(
            [[s.offset, s.height, s.width, s.channels, s.mask_offset] for s in index.slots], np.int64
        )

    def __len__(self) -> int:
        return len(self._index.slots)

    @property
    def sizes(self) -> np.ndarray:
        """[I, 2] int64: height and width of each image."""
        return self._table[:, 1:3].copy()

    @property
    def digest(self) -> str:
        """sha256 in hex of the contents and sizes of the images; it does not depend on their location."""
        return self._index.digest()

    @property
    def digests(self) -> dict[str, str]:
        """sha256 in hex of the content of each image, with that of its mask, by the name of its file."""
        pairs = zip(self._index.names, self._index.contents, strict=True)
        return {name: found.digest + (f"+{found.mask_digest}" if found.mask_digest else "") for name, found in pairs}

    @property
    def nbytes(self) -> int:
        """Size of the packed pixels and masks in bytes."""
        return self._index.nbytes

    @property
    def mapped(self) -> bool:
        """Whether the images fit into the budget for reading, so that pixels come from memory."""
        return self._pack.mapped

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels at image, y, x [R] (integers on the CPU) -> RGBA [R, 4] and weight [R], float32. Not differentiable.

        RGBA is in 0..1 with straight alpha; alpha is 1 for opaque images. The weight is 0 where a mask excludes the
        pixel, else 1. IndexError for a pixel that does not exist.
        """
        self._check_open()
        started = time.perf_counter()
        i, v, u = (np.ascontiguousarray(index.numpy(), np.int64) for index in (image, y, x))
        if not (i.ndim == 1 and i.shape == v.shape == u.shape):
            raise ValueError(f"`image`, `y` and `x` must be [R] alike, got {i.shape}, {v.shape} and {u.shape}.")
        rgba, weight = torch.empty(len(i), 4), torch.empty(len(i))
        out, kept = rgba.numpy(), weight.numpy()
        bad = self._pack.gather(self._table, i, v, u, out, kept)
        if bad >= 0:
            raise self._unfilled(int(i[bad]), int(v[bad]), int(u[bad]))
        self.waited += time.perf_counter() - started
        return rgba, weight

    def image(self, index: int) -> np.ndarray:
        """One whole image, [H, W, 4] uint8 with straight alpha (255 for opaque images)."""
        slot = self._index.slots[self._checked(index)]
        pixels = np.empty((slot.height, slot.width, slot.channels), np.uint8)
        self._pack.read_into(slot.offset, pixels)
        if slot.channels == 4:
            return pixels
        return np.concatenate([pixels, np.full_like(pixels[..., :1], 255)], axis=-1)

    def mask(self, index: int) -> np.ndarray | None:
        """The mask of one image, [H, W] uint8 (255: use the pixel, 0: ignore it); None if the image has no mask."""
        slot = self._index.slots[self._checked(index)]
        if not slot.masked:
            return None
        mask = np.empty((slot.height, slot.width), np.uint8)
        self._pack.read_into(slot.mask_offset, mask)
        return mask

    @property
    def masked(self) -> bool:
        """Whether any image has a mask."""
        return any(slot.masked for slot in self._index.slots)

    def read_rows(self, index: int, top: int, pixels: np.ndarray, mask: np.ndarray | None) -> None:
        """See `contracts.ReadsRows`. The rows are read from the file; nothing else becomes resident."""
        slot = self._index.slots[self._checked(index)]
        if not (top >= 0 and top + len(pixels) <= slot.height and pixels.shape[1:] == (slot.width, 4)):
            raise IndexError(f"Rows {top} to {top + len(pixels)} do not exist: image {index} has {slot.height} rows.")
        first = top * slot.width
        if slot.channels == 4:
            self._pack.read_into(slot.offset + first * 4, pixels)
        else:
            opaque = np.empty((*pixels.shape[:2], 3), np.uint8)
            self._pack.read_into(slot.offset + first * 3, opaque)
            pixels[..., :3] = opaque
            pixels[..., 3] = 255
        if mask is not None and slot.masked:
            self._pack.read_into(slot.mask_offset + first, mask)
        elif mask is not None:
            mask[:] = 255

    def close(self) -> None:
        """Close the file. The bank cannot be read afterwards. Closing it again has no effect."""
        self._pack.close()
        if self._use is not None:
            self._use.close()

    def __enter__(self) -> ImageBank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._pack.closed:
            raise ValueError("This image bank has been closed. Open it again with `open_bank`.")

    def _checked(self, index: int) -> int:
        self._check_open()
        if not 0 <= index < len(self):
            raise IndexError(f"Image {index} does not exist: the bank has {len(self)} images.")
        return index

    def _unfilled(self, image: int, y: int, x: int) -> Exception:
        """The error for a pixel that the kernel could not read."""
        slot = self._index.slots[self._checked(image)]
        if 0 <= y < slot.height and 0 <= x < slot.width:
            return ResourceError(
                f"The image cache could not be read at pixel y={y}, x={x} of {self._index.names[image]}.",
                hint="Check the disk that holds the cache; opening the bank again repairs what can be repaired.",
            )
        return IndexError(
            f"Pixel y={y}, x={x} does not exist: image {image} is {slot.width}x{slot.height} (width x height)."
        )


def open_bank(
    scene: Scene,
    frames: Sequence[int],
    *,
    cache_dir: Path | None = None,
    memory_budget: int | None = None,
    bank_budget: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    message: Callable[[str], None] | None = None,
) -> ImageBank:
    """The image bank of `frames` (indices into `scene.frames`), each image at the size of its camera.

    cache_dir: default `$RAYMINE_CACHE` or `~/.cache/raymine`; there `$RAYMINE_CACHE_BUDGET` limits what packs take.
    memory_budget: resident memory in bytes that packing and reading may each add to the process. None: 512 MB to pack;
    an image that takes more is then decoded alone if half of the free memory is enough for it.
    bank_budget: the same of reading alone. None: `memory_budget`, or half of the free memory (`reading_budget`). Images
    beyond it are read from the file, pixel by pixel; the pixels are the same.
    progress: called with (images done, images in total) while packing.
    workers: number of decoding threads; default one per core.
    message: receives sentences for the user (waiting for another process, a damaged cache); default: log warnings.

    SceneError names every image that cannot be read. ResourceError says which disk space, memory or permission is
    missing.
    """
    for name, given in (("memory_budget", memory_budget), ("bank_budget", bank_budget)):
        if given is not None and given < LEAST_BUDGET:
            raise ConfigError(
                f"`{name}` must be at least 1 MB, got {given} bytes.", hint="Leave it out for the default."
            )
    budget = DEFAULT_BUDGET if memory_budget is None else memory_budget
    reading = bank_budget or memory_budget or reading_budget()
    largest = largest_decode() if memory_budget is None else memory_budget
    if workers is not None and workers < 1:
        raise ConfigError(f"`workers` must be at least 1, got {workers}.", hint="Leave it out for one per core.")
    say = message or _log.warning
    sources = sources_of(scene, frames)
    root = cache_path() if cache_dir is None else Path(cache_dir).absolute()
    # File systems allow names of 255 bytes, and a character takes up to 4.
    folder = root / "banks" / f"{scene.root.name[:50] or 'scene'}-{selection_key(sources)}"
    job = Job(folder, sources, budget, largest, reading, workers or cores(), progress)
    # The pack is marked as used before it is opened, so that no other process drops it in between.
    use = Use.begin(folder)
    try:
        ready = _finished(job)
        index, pack = ready or _packed(job, scene.root, say)
    except BaseException:
        if use is not None:
            use.close()
        raise
    bank = ImageBank(pack, index, use or Use.begin(folder))
    if ready is None and cache_dir is None:
        _keep_budget(say)
    return bank


def _keep_budget(say: Callable[[str], None]) -> None:
    """Drop old packs where `$RAYMINE_CACHE_BUDGET` says how much all may take. The new one is in use, and stays."""
    stated = os.environ.get("RAYMINE_CACHE_BUDGET", "").strip()
    if not stated:
        return
    try:
        dropped = evict(parse_size(stated))
    except ConfigError as error:
        say(f"RAYMINE_CACHE_BUDGET is ignored: {error}")
        return
    if dropped:
        freed = size(sum(entry.bytes for entry in dropped))
        count = "1 old entry" if len(dropped) == 1 else f"{len(dropped)} old entries"
        say(f"Dropped {count} of the cache, {freed}, to keep RAYMINE_CACHE_BUDGET={stated}.")


def _finished(job: Job) -> tuple[Index, PackReader] | None:
    """The pack in the folder if it is finished and up to date, else None. Nothing is locked or written.

    An index is replaced atomically, and a finished pack is never modified. If another process deletes the pack in
    between, opening it fails. So a cache that cannot be written is usable, and runs do not wait for each other.
    """
    try:
        index = read_index(job.folder)
        if index is None or len(index.contents) != len(job.sources):
            return None
        fresh = all(s.stamp() == c.stamp for s, c in zip(job.sources, index.contents, strict=True))
        # Where new stamps can be written, they are worth it: without them the files are hashed again every time.
        if not fresh and (os.access(job.folder, os.W_OK) or len(_unchanged(job, index)) < len(job.sources)):
            return None
        return None if _damaged(job.folder, index) else (index, PackReader(job.folder / index.pack, job.reading))
    except (OSError, ValueError, UnreadableFile):
        return None


def _packed(job: Job, root: Path, say: Callable[[str], None]) -> tuple[Index, PackReader]:
    """The pack in the folder, made or updated first. Only one process does this at a time."""
    writable_folder(job.folder)
    try:
        with locked(job.folder / "lock", lambda: say(f"Another process is packing {root}; waiting for it.")):
            index = _current_index(job, say)
            return index, PackReader(job.folder / index.pack, job.reading)
    except OSError as error:
        raise storage_error(error, job.folder, "the image bank") from error


def _current_index(job: Job, say: Callable[[str], None]) -> Index:
    """The index of an up-to-date pack, which is created or updated if needed. The caller holds the lock."""
    try:
        old = read_index(job.folder)
    except ValueError as error:
        say(f"The image cache {job.folder} is damaged ({error}); packing the images again.")
        old = None
    if old is None:
        return make_pack(job)
    damaged = _damaged(job.folder, old)
    if damaged:
        say(f"{len(damaged)} images in the cache {job.folder} are damaged; packing them again.")
    known = {i: content for i, content in _unchanged(job, old).items() if i not in damaged}
    if len(known) < len(job.sources):
        return make_pack(replace(job, old=old, known=known))
    current = replace(old, contents=tuple(known[i] for i in range(len(job.sources))))
    if current != old:
        write_index(job.folder, current)
    return current


def _unchanged(job: Job, old: Index) -> dict[int, Content]:
    """The sources whose content equals that in the old pack, with their current stamps."""

    def one(i: int) -> Content | None:
        source: Source = job.sources[i]
        content = old.contents[i]
        try:
            stamp = source.stamp()
            if stamp == content.stamp:
                return content
            same = source.digests() == (content.digest, content.mask_digest)
        except UnreadableFile:
            return None
        return replace(content, stamp=stamp) if same else None

    with ThreadPoolExecutor(job.workers) as pool:
        found = pool.map(one, range(len(job.sources)))
        return {i: content for i, content in enumerate(found) if content is not None}


def _damaged(folder: Path, index: Index) -> set[int]:
    """Slots whose bytes do not match their checksum. Checks every k-th slot, about _CHECKED_BYTES in total."""
    mean = max(index.nbytes // len(index.slots), 1)
    stride = max(len(index.slots) * mean // _CHECKED_BYTES, 1)
    descriptor = open_for_reading(folder / index.pack)
    try:
        checked = range(0, len(index.slots), stride)
        return {i for i in checked if slot_crc(descriptor, index.slots[i]) != index.contents[i].crc}
    finally:
        os.close(descriptor)
