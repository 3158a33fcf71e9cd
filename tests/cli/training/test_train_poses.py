"""`raymine train --refine-poses --exposure` and `raymine eval --fit` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine.cli import main

TRAIN = ["--recipe", "support.runs:tiny", "--device", "cpu", "--steps", "4"]


def test_train_and_evaluate_with_fits(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(scene), "--out", "r", "--refine-poses", "--exposure", *TRAIN]) == 0
    err = capsys.readouterr().err
    assert "poses moved by 0." in err
    assert "Next: raymine eval r --fit both" in err
    stored = json.loads(Path("r/config.json").read_text())["train"]
    assert stored["poses"]["lr"] > 0
    assert stored["exposure"]["lr"] > 0

    assert main(["eval", "r", "--device", "cpu", "--pictures", "none"]) == 0
    out, err = capsys.readouterr()
    assert "The training poses of this run were refined and the test poses were not" in err
    assert "fitting" not in out
    plain = json.loads(Path("r/eval/metrics.json").read_text())
    assert "fitted" not in plain

    fit = ["eval", "r", "--device", "cpu", "--pictures", "none", "--views", "1", "--fit", "both"]
    assert main(fit) == 0
    out, err = capsys.readouterr()
    assert "without fitting" in out
    assert "after fitting poses and exposure" in " ".join(out.split())
    assert "fitting " in err.splitlines()[-1]
    both = json.loads(Path("r/eval/metrics.json").read_text())
    assert both["count"] == both["fitted"]["count"] == 1
    assert both["images"][0]["psnr"] in [view["psnr"] for view in plain["images"]]
    assert (both["fitted"]["what"], both["fitted"]["steps"], both["fitted"]["pixels"]) == ("both", 200, 1024)
    assert main([*fit, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fitted"]["images"][0]["name"] == both["images"][0]["name"]


def test_unknown_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "r", "--fit", "colour"]) == 2
    assert "--fit must be poses, exposure or both, got `colour`" in capsys.readouterr().err


def test_one_training_image_is_refused(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(scene), "--out", "r", "--refine-poses", "--hold-out", "4", *TRAIN]) == 2
    err = capsys.readouterr().err
    assert "--refine-poses needs at least 2 training images, and this run has 1" in err
    assert not Path("r").exists()
