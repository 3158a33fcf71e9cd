"""`raymine ingest`: what is printed, and exit codes. COLMAP is not called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import raymine
from raymine.cli import main
from raymine.errors import MissingExtraError, SceneError
from raymine.ingestion import run
from raymine.ingestion.run import Ingested
from raymine.ingestion.source import Skipped


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (80, 90, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def fake(*args: Any, **options: Any) -> Ingested:
    told = options["listener"]
    progress = told.stage("Finding features")
    progress(3, 3)
    told.ended()
    told.warn("x.heic is odd.")
    return Ingested(args[1], (), (Skipped("x.heic", "is odd."),), 7, 0.5, (3,), {"features": 2.0})


def test_result_and_what_comes_next(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "ingest", fake)
    out = tmp_path / "a scene"
    assert main(["ingest", str(photos), "--out", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert f"{out} is written: 0 of 0 photos have a pose; 7 points, 0.50 pixels mean error." in printed
    assert "warning: x.heic is odd." in err
    assert f"Next: raymine train '{out}'" in err
    assert "features 2.0 s" in err
    assert main(["ingest", str(photos), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == [{"name": "x.heic", "why": "is odd."}]


def test_mistakes_are_one_sentence(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycolmap")
    for arguments, code, words in (
        (["nowhere"], 3, "no such folder"),
        ([str(photos / "0.png")], 3, "single photo"),
        ([str(photos), "--frames", "1"], 2, "--frames must be between"),
        ([str(photos), "--threads", "-3"], 2, "--threads must be between"),
    ):
        assert main(["ingest", *arguments, "--out", "new"]) == code
        err = capsys.readouterr().err
        assert words in err
        assert "Traceback" not in err
    out = photos.parent / "taken"
    out.mkdir()
    (out / "x").write_text("")
    assert main(["ingest", str(photos), "--out", str(out)]) == 2
    assert "it is not changed" in capsys.readouterr().err


def test_missing_package_names_the_extra(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent() -> None:
        raise MissingExtraError("pycolmap", "ingest", "`raymine ingest`")

    monkeypatch.setattr(run, "require_pycolmap", absent)
    assert main(["ingest", str(photos), "--out", "new"]) == 7
    assert "raymine[ingest]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "check"])
def test_photos_without_poses_are_sent_to_ingest(
    photos: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(photos), *(["--json"] if command == "check" else [])]) == 3
    out, err = capsys.readouterr()
    assert f"raymine ingest '{photos}'" in out + err


def test_python_function_takes_the_same_options(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    with pytest.raises(SceneError, match="no such"):
        raymine.ingest(tmp_path / "nowhere", out=tmp_path / "scene")
    with pytest.raises(ValueError, match="`frames`"):
        raymine.ingest(photos, out=tmp_path / "scene", frames=1)
