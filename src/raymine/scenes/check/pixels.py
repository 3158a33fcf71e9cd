"""Checks of pixels: reads every image and mask as training does, and compares the images with each other."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from raymine.files import UnreadableFile
from raymine.machine import cores
from raymine.quantities import listing
from raymine.scenes.bank.decode import UnreadableMask, decode, read_header
from raymine.scenes.bank.pack import DEFAULT_BUDGET, SHRINK_IMAGE, largest_decode, memory_excess
from raymine.scenes.bank.sources import Source
from raymine.scenes.images import blank_words
from raymine.scenes.images import read_header as read_image_header
from raymine.scenes.load import Assembly
from raymine.scenes.problems import Problem

_RESTORE = "Restore the file from its source, or remove its frame."
_MOST_THREADS = 8


@dataclass(frozen=True)
class _Examined:
    """Result of reading one image and its mask. digest: of the bytes of the image. blank: in what way it is blank."""

    name: str
    digest: str = ""
    blank: str | None = None
    problem: Problem | None = None


def check_pixels(assembly: Assembly, progress: Callable[[int, int], None] | None) -> list[Problem]:
    """Finds images and masks that cannot be packed, blank images, and images with the same content."""
    reported = {p.file for p in assembly.problems if p.kind == "unreadable-image"}
    done = _examine_all(list(_sources(assembly)), progress)
    problems = [item.problem for item in done if item.problem is not None and item.name not in reported]
    same: dict[str, list[str]] = defaultdict(list)
    for item in done:
        if item.problem is None and item.blank is None:
            same[item.digest].append(item.name)
    for group in same.values():
        if len(group) > 1:
            what = f"has the same content as {listing(group[1:])}."
            fix = "Remove all but one; if their poses differ, all but one are wrong."
            problems.append(Problem(group[0], what, fix, "warning", "duplicate-image", tuple(group)))
    if not any(p.kind == "blank-image" for p in assembly.problems):
        blank = [item for item in done if item.blank is not None]
        problems += [Problem(item.name, item.blank or "", _RESTORE, "warning", "blank-image") for item in blank]
    return problems


def _sources(assembly: Assembly) -> Iterator[Source | Problem]:
    """Each image with its mask once, at the size of its camera; at its own size if its frame has other problems."""
    seen = set()
    for item in assembly.fitted:
        frame = item.frame
        if frame.image is not None and (frame.image, frame.mask) not in seen:
            seen.add((frame.image, frame.mask))
            yield Source(frame.name, frame.image, frame.mask, item.camera.width, item.camera.height)
    for frame in assembly.parsed.frames:
        if frame.image is not None and (frame.image, frame.mask) not in seen:
            seen.add((frame.image, frame.mask))
            try:
                yield Source(frame.name, frame.image, frame.mask, *read_image_header(frame.image).shown)
            except UnreadableFile as error:
                yield Problem(frame.name, error.what, _RESTORE, "error", "unreadable-image")


def _examine_all(sources: list[Source | Problem], progress: Callable[[int, int], None] | None) -> list[_Examined]:
    workers = min(_MOST_THREADS, cores())
    largest, alone = largest_decode(), threading.Lock()

    def examine(source: Source | Problem) -> _Examined:
        if isinstance(source, Problem):
            return _Examined(source.file, problem=source)
        try:
            header = read_header(source)
            excess = memory_excess(header, largest)
            if excess is not None:
                return _Examined(source.name, problem=Problem(source.name, excess, SHRINK_IMAGE, "error", "memory"))
            if header.cost > DEFAULT_BUDGET // workers:
                with alone:
                    return _decoded(source)
            return _decoded(source)
        except UnreadableFile as error:
            kind = "mask" if isinstance(error, UnreadableMask) else "unreadable-image"
            return _Examined(source.name, problem=Problem(source.name, error.what, _RESTORE, "error", kind))

    done = []
    with ThreadPoolExecutor(workers) as pool:
        for i, result in enumerate(pool.map(examine, sources), start=1):
            done.append(result)
            if progress is not None:
                progress(i, len(sources))
    return done


def _decoded(source: Source) -> _Examined:
    decoded = decode(source)
    return _Examined(source.name, decoded.digest, blank_words(decoded.picture))
