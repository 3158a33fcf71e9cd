"""Techniques as flags of `raymine train`, and the same as arguments from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raymine
from raymine.cli import main
from raymine.scenes.builtin import builtin_scene
from support.runs import tiny

TRAIN = ["--recipe", "support.runs:tiny", "--device", "cpu", "--steps", "4"]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A scene of 64 x 64 pixels, which progressive training needs."""
    return builtin_scene(tmp_path / "builtin", size=64, train_views=3, test_views=1)


def test_flags_reach_the_config(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--progressive",
        "--coarse-to-fine",
        "--opacity-loss",
        "0.01",
        "--mask-loss",
        "0.1",
        "--distortion",
        "0.02",
    ]
    assert main(["train", str(large), "--out", "r", *flags, *TRAIN]) == 0
    stored = json.loads(Path("r/config.json").read_text())["train"]
    assert stored["progressive"]["factors"] == [4, 2]
    assert stored["fade"]["fade"] == 0.3
    terms = [term["type"].rpartition(":")[2] for term in stored["loss"]]
    assert terms == ["ColourLoss", "OpacityLoss", "MaskLoss", "DistortionLoss"]
    run = raymine.train(
        large, tiny, steps=4, out="p", device="cpu", progress=False, progressive=True, coarse_to_fine=True,
        opacity_loss=0.01, mask_loss=0.1, distortion=0.02,
    )  # fmt: skip
    assert run.config.train == raymine.load("r", device="cpu", allow="support").config.train


def test_init_from_says_what_it_takes(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(scene), "--out", "half", "--downscale", "2", *TRAIN]) == 0
    capsys.readouterr()
    assert main(["train", str(scene), "--out", "full", "--init-from", "half", *TRAIN]) == 0
    assert "Start: the parameters of half at step 4 (recipe support.runs:tiny)." in capsys.readouterr().err
    run = raymine.train(scene, tiny, steps=4, out="py", init_from="half", device="cpu", progress=False)
    assert run.config.init_from == raymine.load("full", device="cpu", allow="support").config.init_from


def test_refusals_leave_no_folder(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        (["--progressive"], "--progressive: images of 16 pixels are too small"),
        (["--free-space", "0.1"], "--free-space: this scene fits into a box"),
        (["--depth-loss", "0.1"], "--depth-loss: the training frames of this scene have no depth maps."),
        (["--opacity-loss", "-1"], "--opacity-loss must be a weight of 0 (off) or more, got -1."),
        (["--coarse-to-fine", "--refine-poses"], "--refine-poses opens the levels from coarse to fine already"),
        (["--init-from", "nowhere"], "There is no run folder"),
    ):
        assert main(["train", str(scene), "--out", "r", *flags, *TRAIN]) in (2, 4)
        assert words in capsys.readouterr().err
        assert not Path("r").exists()
