"""Frames of videos: the sharpest of each stretch, upright."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.errors import SceneError
from raymine.ingestion.video import write_sharp_frames
from support.textured_room import blurred

av = pytest.importorskip("av")


def texture(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((128, 96), Image.Resampling.NEAREST)


def write_video(path: Path, frames: list[Image.Image], turn: int = 0) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "4"})
        stream.width, stream.height, stream.pix_fmt = *frames[0].size, "yuv420p"
        if turn:
            stream.set_display_rotation(turn)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())


def test_sharpest_frame_of_each_stretch_is_taken(tmp_path: Path) -> None:
    """12 frames in 3 stretches; frames 2, 5 and 11 are sharp."""
    frames = [texture(i) if i in (2, 5, 11) else blurred(texture(i), 3) for i in range(12)]
    write_video(tmp_path / "v.mp4", frames)
    calls: list[tuple[int, int]] = []
    photos = write_sharp_frames(tmp_path / "v.mp4", 3, tmp_path, progress=lambda a, b: calls.append((a, b)))
    assert [photo.name for photo in photos] == ["frame_0001.jpg", "frame_0002.jpg", "frame_0003.jpg"]
    assert [photo.source for photo in photos] == ["at 0.20 s", "at 0.50 s", "at 1.10 s"]
    assert calls[-1] == (12, 12)
    for photo, index in zip(photos, (2, 5, 11), strict=True):
        with Image.open(tmp_path / photo.name) as found:
            error = np.abs(np.asarray(found, dtype=int) - np.asarray(frames[index])).mean()
        assert error < 40, "another frame was written"


def test_short_video_gives_all_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mp4", [texture(i) for i in range(4)])
    assert len(write_sharp_frames(tmp_path / "v.mp4", 60, tmp_path)) == 4


@pytest.mark.parametrize("turn", [90, -90, 180])
def test_rotation_of_the_video_is_applied(tmp_path: Path, turn: int) -> None:
    """A player turns the stored picture by the angle of the file, counter-clockwise."""
    upright = Image.new("RGB", (96, 128) if abs(turn) == 90 else (128, 96), "blue")
    upright.paste("red", (0, 0, upright.width, 32))
    stored = upright.rotate(-turn, expand=True)
    write_video(tmp_path / "v.mp4", [stored] * 4, turn)
    with av.open(str(tmp_path / "v.mp4")) as container:
        assert next(container.decode(video=0)).rotation in (turn, -turn), "the file has no rotation to test"
    photo = write_sharp_frames(tmp_path / "v.mp4", 3, tmp_path)[0]
    with Image.open(tmp_path / photo.name) as found:
        assert found.size == upright.size
        assert found.getpixel((found.width // 2, 8))[0] > 150, "red must be at the top"  # type: ignore[index]


def test_files_without_frames_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video at all")
    with pytest.raises(
        SceneError, match=r"a\.mp4 cannot be decoded: Invalid data found when processing input\.\n"
    ) as caught:
        write_sharp_frames(tmp_path / "a.mp4", 3, tmp_path)
    assert "Errno" not in caught.value.message
    with av.open(str(tmp_path / "b.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 44100
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(SceneError, match="has no frames"):
        write_sharp_frames(tmp_path / "b.mp4", 3, tmp_path)
    write_video(tmp_path / "c.mp4", [texture(0)] * 2)
    with pytest.raises(SceneError, match="2 frames"):
        write_sharp_frames(tmp_path / "c.mp4", 3, tmp_path)
