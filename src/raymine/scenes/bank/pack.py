"""Writing a pack: decodes new images, copies known ones from the old pack, and continues an interrupted pack.

If the process is killed, either the old or the new index is valid, with its pack. Only the process that holds the lock
of the folder writes to an unfinished pack.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from raymine.errors import ResourceError, SceneError, option
from raymine.files import UnreadableFile, remove_stale_temps
from raymine.machine import free_memory
from raymine.scenes._cache import storage_error
from raymine.scenes.bank.decode import Header, decode, read_header
from raymine.scenes.bank.index import (
    INDEX,
    JOURNAL,
    Content,
    Index,
    PackJournal,
    Slot,
    lay_out,
    pack_bytes,
    write_index,
)
from raymine.scenes.bank.io import PIECE, WriteError, copy_slot, open_for_reading, open_pack, slot_crc, write_decoded
from raymine.scenes.bank.sources import Source

DEFAULT_BUDGET = 512 << 20
LEAST_BUDGET = 1 << 20
SHRINK_IMAGE = "Shrink the image file, or free some memory."
_SPARE = 32 << 20  # bytes of disk left free beside a pack


@dataclass(frozen=True)
class Job:
    """What to pack, and how.

    budget: memory in bytes for all images that are decoded at once. largest: the most that one image may take, which is
    decoded alone if it is beyond the budget. reading: memory in bytes that reading the pack may take. progress: called
    with (images done, images in total). old: the index of an earlier pack. known: for each source that has not changed,
    its content in `old`.
    """

    folder: Path
    sources: Sequence[Source]
    budget: int
    largest: int
    reading: int
    workers: int
    progress: Callable[[int, int], None] | None = None
    old: Index | None = None
    known: dict[int, Content] = field(default_factory=dict)


def largest_decode() -> int:
    """Bytes that a single image may take to decode if nobody has set a budget: half of the free memory."""
    return max(DEFAULT_BUDGET, free_memory() // 2)


def reading_budget(working: int = 0) -> int:
    """Bytes of a pack that may be in memory if nobody has set a budget.

    Half of the memory that is free beside `working`, the bytes that are needed for other things; at least 512 MB where
    there is that much. Pages of a mapped pack can be given up without writing them, so they make no machine swap.
    """
    room = max(0, free_memory() - working)
    return max(room // 2, min(DEFAULT_BUDGET, room), LEAST_BUDGET)


def memory_excess(header: Header, largest: int) -> str | None:
    """Why an image takes too much memory to decode, to follow its name; None if it does not."""
    if header.cost <= largest:
        return None
    return f"needs about {_mb(header.cost)} MB of memory to decode, more than the {_mb(largest)} MB that it may take."


def make_pack(job: Job) -> Index:
    """Packs every source of `job`, and writes and returns the new index. SceneError names all unreadable images."""
    with ThreadPoolExecutor(job.workers) as pool:
        headers, bad = _probe_all(job, pool)
        _check_memory(job, headers)
        slots = lay_out(job.sources, [header.channels for header in headers])
        _remove_strays(job)
        try:
            journal = PackJournal(job.folder, [source.name for source in job.sources], slots)
        except OSError as error:
            raise storage_error(error, job.folder, "the image bank") from error
        try:
            _fill(job, pool, journal, slots, headers, bad)
        except WriteError as error:
            journal.close()
            # The disk is probably full: delete the incomplete pack to free its space.
            (job.folder / journal.pack).unlink(missing_ok=True)
            journal.path.unlink(missing_ok=True)
            raise storage_error(error.cause, job.folder, "the image bank") from error.cause
        finally:
            journal.close()
    if bad:
        raise _unreadable(job, bad)
    contents = tuple(journal.done[i] for i in range(len(slots)))
    index = Index(journal.pack, tuple(source.name for source in job.sources), slots, contents)
    write_index(job.folder, index)
    journal.path.unlink(missing_ok=True)
    _remove_strays(job)
    return index


def _probe_all(job: Job, pool: ThreadPoolExecutor) -> tuple[list[Header], dict[int, str]]:
    """Headers of all sources, and the reason for each source that cannot be read (its header is a placeholder)."""
    bad: dict[int, str] = {}

    def one(i: int) -> Header:
        if job.old is not None and i in job.known:
            return Header(job.old.slots[i].channels, PIECE)
        try:
            return read_header(job.sources[i])
        except UnreadableFile as error:
            bad[i] = error.what
            return Header(3, 0)

    return list(pool.map(one, range(len(job.sources)))), bad


def _check_memory(job: Job, headers: Sequence[Header]) -> None:
    worst = max(range(len(headers)), key=lambda i: headers[i].cost)
    excess = memory_excess(headers[worst], job.largest)
    if excess is not None:
        raise ResourceError(f"{job.sources[worst].image} {excess}", hint=SHRINK_IMAGE)


def _check_disk(job: Job, journal: PackJournal, needed: int) -> None:
    path = job.folder / journal.pack
    written = path.stat().st_blocks * 512 if path.exists() and hasattr(path.stat(), "st_blocks") else 0
    free = shutil.disk_usage(job.folder).free
    missing = max(needed - written, 0)
    if missing + _SPARE > free:
        if not journal.done:
            journal.path.unlink(missing_ok=True)
        raise ResourceError(
            f"The image bank needs {_mb(missing + _SPARE)} MB of disk in {job.folder}, and {_mb(free)} MB are free.",
            hint=f"Use smaller images ({option('downscale', 2)} needs a quarter), free some space, or set "
            "RAYMINE_CACHE to a folder on a larger disk.",
        )


def _fill(
    job: Job,
    pool: ThreadPoolExecutor,
    journal: PackJournal,
    slots: Sequence[Slot],
    headers: Sequence[Header],
    bad: dict[int, str],
) -> None:
    """Writes every slot of the pack. Images in progress take at most half the budget; allocators may keep the rest."""
    _check_disk(job, journal, pack_bytes(slots))
    descriptor = open_pack(job.folder / journal.pack, pack_bytes(slots))
    old = None if job.old is None else open_for_reading(job.folder / job.old.pack)
    running: dict[Future[Content | str], int] = {}
    try:
        for i in [i for i, content in journal.done.items() if not _still_good(job, descriptor, i, slots[i], content)]:
            del journal.done[i]
        todo = [i for i in range(len(slots)) if i not in journal.done and i not in bad]
        report = job.progress or (lambda done, total: None)
        report(len(journal.done), len(slots))
        room = job.budget // 2
        while todo or running:
            while todo and (not running or headers[todo[0]].cost <= room) and len(running) < job.workers:
                i = todo.pop(0)
                room -= headers[i].cost
                running[pool.submit(_bring, job, i, slots[i], descriptor, old)] = i
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                i = running.pop(future)
                room += headers[i].cost
                result = future.result()
                if isinstance(result, str):
                    bad[i] = result
                else:
                    _record(journal, i, result)
                    report(len(journal.done), len(slots))
        if not bad:
            os.fsync(descriptor)
    except OSError as error:
        raise WriteError(error) from error
    finally:
        # Wait for all threads before closing: the descriptor could be reused for another file while one still writes.
        wait(running)
        os.close(descriptor)
        if old is not None:
            os.close(old)


def _record(journal: PackJournal, i: int, content: Content) -> None:
    try:
        journal.add(i, content)
    except OSError as error:
        raise WriteError(error) from error


def _still_good(job: Job, descriptor: int, i: int, slot: Slot, content: Content) -> bool:
    """Whether a slot of an interrupted pack can be kept: its files have not changed and its checksum is correct."""
    try:
        if job.sources[i].stamp() != content.stamp:
            return False
    except UnreadableFile:
        return False
    return slot_crc(descriptor, slot) == content.crc


def _bring(job: Job, i: int, slot: Slot, descriptor: int, old: int | None) -> Content | str:
    """Writes one slot, from the old pack if its content is known. Returns its content, or why the image is bad."""
    if old is not None and job.old is not None and i in job.known:
        known = job.known[i]
        if copy_slot(old, job.old.slots[i], descriptor, slot) == known.crc:
            return known
    try:
        decoded = decode(job.sources[i])
    except UnreadableFile as error:
        return error.what
    if len(decoded.picture.getbands()) != slot.channels:
        return "changed while it was being packed; try again."
    return Content(decoded.digest, decoded.mask_digest, decoded.stamp, write_decoded(descriptor, slot, decoded))


def _remove_strays(job: Job) -> None:
    """Deletes files of killed processes that neither the index nor the journal refers to. The caller holds the lock."""
    remove_stale_temps(job.folder)
    texts = [path.read_text("utf-8", "replace") for path in (job.folder / INDEX, job.folder / JOURNAL) if path.exists()]
    for pack in job.folder.glob("pack-*.u8"):
        if not any(pack.name in text for text in texts):
            # Windows cannot delete a pack that another process has mapped. The next call tries again.
            with suppress(PermissionError):
                pack.unlink()


def _unreadable(job: Job, bad: dict[int, str]) -> SceneError:
    lines = [f"  {job.sources[i].image} {bad[i]}" for i in sorted(bad)]
    count = "1 image" if len(bad) == 1 else f"{len(bad)} images"
    return SceneError(
        f"{count} of {len(job.sources)} cannot be read:\n" + "\n".join(lines),
        hint="Replace these files with good copies, or remove their frames from the scene. The images already packed "
        "are kept and will not be decoded again.",
    )


def _mb(count: int) -> str:
    return f"{count / (1 << 20):,.0f}"
