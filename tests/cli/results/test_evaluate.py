"""`raymine eval`: the choice of pictures, the folder they are in, and the line that says what took how long."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from raymine.cli import main
from raymine.experiment import train
from support.runs import request

KINDS = ("depth", "error", "opacity", "pred", "sheet", "true")


@pytest.fixture
def trained(scene: Path) -> Path:
    train(request(scene, Path("r"), steps=4, evaluate_views=0))
    return Path("r")


def test_each_choice_of_pictures(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scene has three test views. No evaluation leaves pictures of the one before."""
    scores = []
    for choice, views in (("all", 3), ("none", 0), ("few", 3), ("none", 0)):
        assert main(["eval", "r", "--device", "cpu", "--pictures", choice, "--json"]) == 0
        out, err = capsys.readouterr()
        scores.append([(view["psnr"], view["ssim"]) for view in json.loads(out)["images"]])
        found = sorted(path.name for path in (trained / "eval" / "images").glob("*"))
        assert found == [f"r_{i}-{kind}.png" for i in range(views) for kind in KINDS]
        assert json.loads((trained / "eval" / "metrics.json").read_text())["count"] == 3
        assert (f"Pictures: {trained / 'eval' / 'images'}" in err) == (views > 0)
        assert f"Scores: {trained / 'eval' / 'metrics.json'}" in err
    assert scores[0] == scores[1] == scores[2]


def test_splits_have_folders_of_their_own(trained: Path) -> None:
    assert main(["eval", "r", "--device", "cpu", "--views", "1"]) == 0
    assert main(["eval", "r", "--device", "cpu", "--split", "train", "--pictures", "none"]) == 0
    assert len(list((trained / "eval" / "images").iterdir())) == len(KINDS)
    assert [path.name for path in (trained / "eval-train").iterdir()] == ["metrics.json"]


def test_last_line_says_how_long_it_took(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "r", "--device", "cpu"]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    found = re.fullmatch(
        r"Took ([\d.]+) s: loading ([\d.]+) s, rendering ([\d.]+) s, scores and pictures ([\d.]+) s\.", last
    )
    assert found, last
    total, *parts = (float(part) for part in found.groups())
    assert sum(parts) == pytest.approx(total, abs=0.21)


def test_protocol_is_printed_and_lpips_without_weights_is_a_warning(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from raymine.evaluate.lpips import weights

    def refuse(folder: Path) -> Path:
        raise weights.WeightsUnavailable("there is no network.", hint="Connect it.")

    monkeypatch.setattr(weights, "_cached", lambda net, path: None)
    monkeypatch.setattr(weights, "_download", refuse)
    assert main(["eval", "r", "--device", "cpu", "--pictures", "none", "--lpips", "alex"]) == 0
    out, err = capsys.readouterr()
    assert "No LPIPS: there is no network. Connect it." in " ".join(err.split())
    stored = json.loads((trained / "eval" / "metrics.json").read_text())
    assert stored["psnr"] > 0
    assert "lpips_alex" not in stored
    assert f"Protocol {stored['protocol']['digest']}: all 3 test images" in out
    assert (stored["protocol"]["split"], stored["protocol"]["views"]) == ("test", 3)


def test_unknown_choice_of_pictures_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "r", "--pictures", "some"]) == 2
    assert "--pictures" in capsys.readouterr().err


def test_folder_that_cannot_be_written_is_reported_before_rendering(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / "eval").write_text("in the way")
    assert main(["eval", "r", "--device", "cpu"]) == 5
    err = capsys.readouterr().err
    assert f"error: Cannot write the evaluation: {trained / 'eval'}: " in err
    assert "Traceback" not in err
