"""MP4 files, checked by decoding them again."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raymine.errors import ConfigError, MissingExtraError, ResourceError
from raymine.export import orbit, render_path, video, write_mp4, write_videos
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


def test_missing_av_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_av(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "av":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(MissingExtraError, match=r"Writing MP4 needs the package `av`.*\n.*raymine\[video\]"):
        write_mp4([np.zeros((4, 4, 3), np.uint8)], tmp_path / "x.mp4")
