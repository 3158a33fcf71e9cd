"""`raymine verify`: the evaluated images are rendered again, and a model that differs is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from raymine.cli import main
from raymine.experiment import train
from support.disc_scene import write_scene
from support.runs import request


def test_model_is_verified_against_the_pictures_of_its_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(request(write_scene(tmp_path / "scene"), run, steps=4))
    assert main(["verify", str(run)]) == 4
    assert "has no evaluation to compare with" in capsys.readouterr().err
    assert main(["eval", str(run), "--pictures", "none"]) == 0
    assert main(["verify", str(run)]) == 4
    assert main(["eval", str(run)]) == 0
    capsys.readouterr()
    assert main(["verify", str(run), "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["views"], json.loads(out)["largest"]) == (1, 0)
    assert "Verified: the checkpoint of step 4" in err
    picture = next((run / "eval/images").glob("*-pred.png"))
    pixels = np.asarray(Image.open(picture)).copy()
    pixels[0, 0] ^= 16
    Image.fromarray(pixels).save(picture)
    assert main(["verify", str(run), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["largest"] == 16
    assert main(["verify", str(run), "--model", str(tmp_path / "x.safetensors")]) == 2


def test_exported_snapshot_is_verified_by_its_own_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model = tmp_path / "run", tmp_path / "model.safetensors"
    train(request(write_scene(tmp_path / "scene"), run, steps=4))
    assert main(["eval", str(run)]) == 0
    assert main(["export", str(run), "--to", str(model)]) == 0
    assert main(["verify", str(run), "--model", str(model)]) == 0
    capsys.readouterr()
    tensors, metadata = load_file(model), _metadata(model)
    tensors["colour.0"] += 5
    save_file(tensors, model, metadata)
    assert main(["verify", str(run), "--model", str(model), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["largest"] > 1
    model.write_bytes(b"not a model")
    assert main(["verify", str(run), "--model", str(model)]) == 2
    assert "raymine export" in capsys.readouterr().err


def _metadata(model: Path) -> dict[str, str]:
    with safe_open(str(model), framework="pt") as file:
        return dict(file.metadata())
