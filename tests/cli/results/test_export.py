"""`raymine export` from the command line, and `Run.export`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

import raymine
from raymine.cli import main
from raymine.cli.results.export import parse_box
from raymine.errors import ConfigError
from raymine.experiment import train
from raymine.files import AtomicFile
from support.runs import request


def test_export_writes_a_snapshot_and_refuses_to_replace_it(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(request(scene, Path("r"), steps=20))
    assert main(["export", "r", "--to", "a.safetensors", "--device", "cpu", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    (made,) = found["exports"]
    assert made["format"] == "snapshot"
    assert made["files"] == ["a.safetensors"]
    assert made["checks"]["difference"] < 1e-3
    assert "Took " in err
    before = Path("a.safetensors").read_bytes()
    assert main(["export", "r", "--to", "a.safetensors"]) == 2
    assert capsys.readouterr().err == (
        "error: a.safetensors exists.\nGive another name, or replace it with --overwrite.\n"
    )
    assert Path("a.safetensors").read_bytes() == before
    report = raymine.load("r", device="cpu").export("a.onnx")
    assert report.checks["difference"] < 1e-3
    with pytest.raises(ConfigError, match="`overwrite=True`"):
        raymine.load("r", device="cpu").export("a.onnx")


def test_export_to_several_files_loads_the_run_once(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(request(scene, Path("r"), steps=20))
    asked = ["--to", "a.safetensors", "--to", "a.onnx", "--loader", "--device", "cpu"]
    assert main(["export", "r", *asked, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [made["files"] for made in json.loads(out)["exports"]] == [
        ["a.safetensors", "snapshot_loader.py"],
        ["a.onnx"],
    ]
    assert "a.safetensors:" in err
    assert "a.onnx:" in err
    Path("a.safetensors").unlink()
    assert main(["export", "r", *asked]) == 2
    assert "snapshot_loader.py exists" in capsys.readouterr().err
    assert not Path("a.safetensors").exists(), "every file is checked before the first is written"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--to is missing"),
        (["--to", "a.ply"], 2, "Say which: --format mesh, --format splats"),
        (["--to", "a.glb", "--faces", "1"], 2, "--faces must be between"),
        (["--to", "a.glb", "--box", "0,0,0,1,1"], 2, "--box must be six finite numbers"),
        (["--to", "a.glb", "--box", "0,0,0,1,1,inf"], 2, "--box must be six finite numbers"),
        (["--to", "a.glb", "--threshold", "1e7"], 2, "--threshold is a density, above 0 and below 10000000, got 1"),
        (["--to", "a.glb", "--time", "2"], 2, "--time must be in 0 to 1"),
        (["--to", "a.glb", "--to", "a.glb"], 2, "a.glb is named twice in --to"),
        (["--to", "a.glb", "--to", "a.onnx", "--count", "5"], 2, "--count means nothing for any of a.glb, a.onnx"),
        (["--to", "a.glb"], 4, "has no checkpoint yet"),
    ],
)
def test_wrong_requests_are_told_in_a_sentence(
    arguments: list[str], code: int, words: str, scene: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(request(scene, Path("r"), steps=1))
    for file in Path("r", "checkpoints").iterdir():
        file.unlink()
    assert main(["export", "r", *arguments]) == code
    assert words in capsys.readouterr().err


def test_time_of_a_scene_that_does_not_move_is_refused(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(request(scene, Path("r"), steps=1))
    assert main(["export", "r", "--to", "a.safetensors", "--time", "0.5", "--device", "cpu"]) == 2
    assert "--time was given, and the frames of this scene have no times" in capsys.readouterr().err
    assert not Path("a.safetensors").exists()


def test_full_disk_is_told_with_the_name_of_the_target(
    scene: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(request(scene, Path("r"), steps=1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(AtomicFile, "write", full)
    assert main(["export", "r", "--to", "a.onnx", "--device", "cpu"]) == 5
    assert "Free some space or choose another disk with --to;" in capsys.readouterr().err
    assert not Path("a.onnx").exists()


def test_parse_box() -> None:
    assert parse_box("-1,0,0,1,2,3.5") == (-1.0, 0.0, 0.0, 1.0, 2.0, 3.5)
    assert parse_box(None) is None
