"""Frames of a video: the sharpest one of each stretch, upright."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from raymine.errors import SceneError
from raymine.export.video import require_av

from .photos import Photo, describe, save
from .sharpness import sharpness

_FEWEST = 3


def write_sharp_frames(
    video: Path, count: int, folder: Path, *, progress: Callable[[int, int], None] | None = None
) -> list[Photo]:
    """Divide a video into `count` stretches of equal length, and write the sharpest frame of each as JPEG.

    progress: called with (frames read, frames in total). `SceneError` for a file that has fewer than 3 frames or cannot
    be decoded. A video with fewer than `count` frames gives all of them.
    """
    total = _count_frames(video)
    if total < _FEWEST:
        words = (
            "has no frames" if total == 0 else f"has {total} frame{'s'[: total != 1]}; at least {_FEWEST} are needed"
        )
        raise SceneError(f"The video {video} {words}.", hint="Check that it plays, or give a folder of photos.")
    count = min(count, total)
    photos: list[Photo] = []
    best: tuple[float, float, Image.Image] | None = None
    stretch = 0
    for index, (seconds, image) in enumerate(_frames(video)):
        if min(index * count // total, count - 1) > stretch and best is not None:
            photos.append(_write(best, len(photos), folder))
            best, stretch = None, stretch + 1
        score = sharpness(image)
        if best is None or score > best[0]:
            best = (score, seconds, image)
        if progress is not None:
            progress(min(index + 1, total), total)
    if best is not None:
        photos.append(_write(best, len(photos), folder))
    return photos


def _write(best: tuple[float, float, Image.Image], index: int, folder: Path) -> Photo:
    _, seconds, image = best
    name = f"frame_{index + 1:04d}.jpg"
    save(image, folder / name)
    return describe(name, f"at {seconds:.2f} s", image)


def _count_frames(video: Path) -> int:
    """The number of frames, by decoding nothing: packets of the video stream."""
    av = require_av()
    try:
        with av.open(str(video)) as container:
            if not container.streams.video:
                return 0
            return sum(1 for packet in container.demux(container.streams.video[0]) if packet.size)
    except (av.error.FFmpegError, OSError) as error:
        raise _unreadable(video, error) from error


def _frames(video: Path) -> Iterator[tuple[float, Image.Image]]:
    """The frames in order, upright: time in seconds, and the picture."""
    av = require_av()
    try:
        with av.open(str(video)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for index, frame in enumerate(container.decode(stream)):
                seconds = frame.time if frame.time is not None else float(index)
                yield seconds, _upright(frame.to_image(), frame)
    except (av.error.FFmpegError, OSError) as error:
        raise _unreadable(video, error) from error


def _upright(image: Image.Image, frame: Any) -> Image.Image:
    """The picture turned as a player shows it. PyAV tells the rotation counter-clockwise, in degrees."""
    turn = round(getattr(frame, "rotation", 0) / 90) % 4
    ways = {1: Image.Transpose.ROTATE_90, 2: Image.Transpose.ROTATE_180, 3: Image.Transpose.ROTATE_270}
    return image.transpose(ways[turn]) if turn else image


def _unreadable(video: Path, error: Exception) -> SceneError:
    # The text of an error of FFmpeg has its number and the path as well.
    why = getattr(error, "strerror", None) or error
    return SceneError(
        f"The video {video} cannot be decoded: {why}.", hint="Check that it plays, or convert it to MP4 (H.264)."
    )
