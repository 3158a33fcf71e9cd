"""MP4 files, checked by decoding them again."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raymine import pictures, workers
from raymine.errors import ConfigError, MissingExtraError, ResourceError
from raymine.export import FramePictures, orbit, render_path, video, write_frames, write_mp4, write_videos
from support.novel_views import Sphere, make_scene, ring


def test_mp4_keeps_frame_count_rate_and_colours(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    target = tmp_path / "deep" / "x.mp4"
    frames = [np.full((31, 45, 3), (200, 30, 5 * i), np.uint8) for i in range(12)]
    assert write_mp4(iter(frames), target, fps=24) == 12
    assert os.listdir(target.parent) == ["x.mp4"]
    with av.open(str(target)) as container:
        stream = container.streams.video[0]
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 24)
    assert len(decoded) == 12
    assert decoded[0].shape == (32, 46, 3)
    for wanted, got in zip(frames, decoded, strict=True):
        assert np.abs(got[10, 10].astype(int) - wanted[10, 10].astype(int)).max() <= 6
        assert np.abs(got[31, 45].astype(int) - wanted[30, 44].astype(int)).max() <= 6


def test_one_pass_writes_a_video_per_kind(tmp_path: Path) -> None:
    pytest.importorskip("av")
    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.arange(5.0)))
    views = render_path(Sphere(), orbit(scene, 3), scene.bounds, background=(0.0, 0.0, 0.0))
    written = write_videos(views, tmp_path / "x.mp4", kinds=("colour", "depth", "opacity"))
    assert [p.name for p in written] == ["x.mp4", "x-depth.mp4", "x-opacity.mp4"]
    assert [video.count_frames(p) for p in written] == [3, 3, 3]


def test_invalid_frames_or_fps_raise_and_leave_no_file(tmp_path: Path) -> None:
    pytest.importorskip("av")
    target = tmp_path / "x.mp4"
    with pytest.raises(ConfigError, match="no frame to write"):
        write_mp4([], target)
    with pytest.raises(ConfigError, match=r"`fps` must be between 0.1 and 1000, got 0"):
        write_mp4([np.zeros((4, 4, 3), np.uint8)], target, fps=0)
    with pytest.raises(ConfigError, match=r"Frame 1 has shape \(6, 4, 3\), the first one \(4, 4, 3\)"):
        write_mp4([np.zeros((4, 4, 3), np.uint8), np.zeros((6, 4, 3), np.uint8)], target)
    assert os.listdir(tmp_path) == []


def test_failed_write_keeps_the_old_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    target = tmp_path / "x.mp4"
    frames = [np.zeros((4, 4, 3), np.uint8)] * 3
    write_mp4(frames, target)
    before = target.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(ResourceError, match="Cannot write the video: no space left on the disk"):
        write_mp4(frames, target)
    monkeypatch.undo()
    monkeypatch.setattr(video, "count_frames", lambda path: 2)
    with pytest.raises(ResourceError, match="was written with 3 frames but holds 2"):
        write_mp4(frames, target)
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.mp4"]


def frames_of(count: int) -> Iterator[FramePictures]:
    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.arange(5.0)))
    return render_path(Sphere(), orbit(scene, count), scene.bounds, background=(0.0, 0.0, 0.0))


def test_frames_written_by_several_threads_equal_those_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(workers, "cores", lambda threads=threads: threads)
        written = write_frames(frames_of(6), tmp_path / str(threads), kinds=("colour", "depth", "opacity"))
        assert sorted(os.listdir(tmp_path / str(threads))) == sorted(path.name for path in written)
        found.append([(path.name, path.read_bytes()) for path in written])
    assert len(found[0]) == 18
    assert found[0] == found[1]


def test_only_the_kinds_asked_for_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("a depth picture that nobody asked for")

    monkeypatch.setattr(pictures, "depth_picture", unexpected)
    assert len(write_frames(frames_of(2), tmp_path, kinds=("colour", "opacity"))) == 4


def test_frame_that_cannot_be_written_ends_rendering_and_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    save = pictures.save_png

    def full(path: Path, image: np.ndarray) -> None:
        if "0003" in path.name:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, image)

    def counted() -> Iterator[FramePictures]:
        for frame in frames_of(200):
            rendered.append(1)
            yield frame

    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(pictures, "save_png", full)
    words = f"Cannot write the picture: no space left on the disk of {tmp_path}/colour-0003.png"
    with pytest.raises(ResourceError, match=words):
        write_frames(counted(), tmp_path)
    assert len(rendered) < 100, "rendering goes on after a failure"
    for path in tmp_path.iterdir():
        with Image.open(path) as picture:
            assert picture.size == (40, 30)
    assert "colour-0003.png" not in os.listdir(tmp_path)


@pytest.mark.parametrize("is_video", [False, True], ids=["frames", "video"])
def test_few_frames_wait_to_be_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_video: bool) -> None:
    """At most four frames with two threads, and three for a video, which has one."""
    if is_video:
        pytest.importorskip("av")
    lock, encoded, most = threading.Lock(), [0], 0
    convert = pictures.to_uint8

    def slow(image: np.ndarray) -> np.ndarray:
        if image.dtype != np.uint8:
            time.sleep(0.005)
            with lock:
                encoded[0] += 1
        return convert(image)

    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(pictures, "to_uint8", slow)

    def counted() -> Iterator[FramePictures]:
        nonlocal most
        for rendered, frame in enumerate(frames_of(20)):
            most = max(most, rendered - encoded[0])
            yield frame

    if is_video:
        write_videos(counted(), tmp_path / "x.mp4")
    else:
        write_frames(counted(), tmp_path)
    assert encoded[0] == 20
    assert 1 <= most <= (3 if is_video else 4)


def test_video_of_a_failed_encoder_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three videos fails in its thread: none of them gets its name."""
    pytest.importorskip("av")
    add = video.Mp4Writer.add

    def fail(self: video.Mp4Writer, picture: np.ndarray) -> None:
        if self.count == 3 and "depth" in self._path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        add(self, picture)

    monkeypatch.setattr(video.Mp4Writer, "add", fail)
    with pytest.raises(ResourceError, match="Cannot write the video: no space left on the disk"):
        write_videos(frames_of(8), tmp_path / "x.mp4", kinds=("colour", "depth", "opacity"))
    assert os.listdir(tmp_path) == []


def test_missing_av_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_av(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "av":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(MissingExtraError, match=r"Writing MP4 needs the package `av`.*\n.*raymine\[video\]"):
        write_mp4([np.zeros((4, 4, 3), np.uint8)], tmp_path / "x.mp4")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is a full disk")
def test_disk_that_is_full_in_the_middle_of_a_video_is_an_error_and_no_crash() -> None:
    pytest.importorskip("av")
    program = """
import errno
from fractions import Fraction
from pathlib import Path
import numpy as np
from raymine.export.video import Mp4Writer, require_av

writer, noise = Mp4Writer(require_av(), Path("/dev/full"), Fraction(30), 18), np.random.default_rng(0)
try:
    for _ in range(200):
        writer.add(noise.integers(0, 255, (200, 200, 3), dtype=np.uint8))
except OSError as error:
    assert error.errno == errno.ENOSPC, error
    print("full after", writer.count)
writer.add(np.zeros((200, 200, 3), np.uint8))
writer.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("full after")
