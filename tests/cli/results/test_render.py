"""`raymine render`: parsing of --size, checks of the output path, and written camera paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raymine.cli import main
from raymine.cli.results.render import check_output, choose_path, parse_size
from raymine.errors import ConfigError, speaking_of_flags
from raymine.experiment import TrainRequest, train
from support.novel_views import forward_scene
from support.scene_writers import ring, write_colmap


@pytest.mark.parametrize("text", ["12", "0x4", "ax3", "12x", "-1x4", "1x2x3", "", "²x3", "9" * 5000 + "x1", "1e9x1"])
def test_parse_size_rejects_malformed_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="--size must look like 320x240"):
        parse_size(text)


def test_parse_size_accepts_either_case_and_none() -> None:
    assert parse_size("320x240") == (320, 240)
    assert parse_size("320X240") == (320, 240)
    assert parse_size(None) is None


def test_absurd_size_and_number_of_frames_are_refused_by_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "r", "--size", "100000x100000"]) == 2
    assert capsys.readouterr().err == (
        "error: A picture may have up to 33.6 million pixels, such as 7680x4320; 100000x100000 is too large.\n"
        "Give a smaller --size.\n"
    )
    with speaking_of_flags(), pytest.raises(ConfigError, match="--frames must be between 1 and 100000, got 1000000000"):
        choose_path("orbit", forward_scene(), 10**9, None)


def test_written_path_renders_the_same_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a scene that is centred, turned and scaled: an orbit, written to a file, and the file, rendered."""

    def document(*arguments: str) -> Any:
        code = main(["render", "r", *arguments, "--device", "cpu", "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        assert ("Took " in err) == ("--write-path" not in arguments)
        return json.loads(out)

    overrides = {"batch.samples": 1024, "field.grid.log2_entries": 12}
    scene = write_colmap(ring(count=9), tmp_path / "scene")
    train(TrainRequest(scene, out=Path("r"), steps=20, device="cpu", overrides=overrides, evaluate_views=0))
    size = ("--size", "16x12")
    found = document("--path", "orbit", "--frames", "3", *size, "--out", "a")
    assert found == {"run": "r", "step": 20, "path": "orbit", "views": 3, "width": 16, "height": 12, "files": ["a"]}
    written = document("--path", "orbit", "--frames", "3", *size, "--write-path", "p.json")
    assert written == {**found, "files": ["p.json"]}
    assert sorted(path.name for path in Path("r/export").glob("*")) == [], "writing a path renders nothing"
    edited = Path("p.json").read_text()
    assert main(["render", "r", "--path", "orbit", "--write-path", "p.json"]) == 2
    assert "error: --write-path p.json exists" in capsys.readouterr().err
    assert Path("p.json").read_text() == edited, "the edited path is lost"
    assert document("--path", "p.json", "--out", "b") == {**found, "path": "p", "files": ["b"]}
    for name in ("colour-0000.png", "colour-0002.png"):
        with Image.open(Path("a") / name) as first, Image.open(Path("b") / name) as second:
            apart = np.asarray(first).astype(int) - np.asarray(second)
        assert np.abs(apart).max() <= 1


def test_check_target_rejects_existing_or_unsupported_targets(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "dir.mp4").mkdir()
    for target, words in (
        (tmp_path / "full", "is not empty"),
        (tmp_path / "full" / "x", "is a file; frames need a folder"),
        (tmp_path / "dir.mp4", "is a folder; a video needs a file name"),
        (tmp_path / "x.gif", "written as .mp4, not .gif"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_output(target)
    check_output(tmp_path / "new")
    check_output(tmp_path / "new.mp4")


def test_existing_video_or_frames_are_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "trip.mp4").write_bytes(b"a video of somebody")
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "colour-0000.png").touch()
    for target in (tmp_path / "trip.mp4", tmp_path / "frames"):
        with pytest.raises(ConfigError) as raised:
            check_output(target)
        assert "--overwrite" in str(raised.value.hint)
        check_output(target, overwrite=True)
