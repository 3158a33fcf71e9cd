"""`raymine verify`: the evaluated images are rendered again, and a model that differs is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from raymine.cli import main
from raymine.contracts import Rays, Rendered
from raymine.experiment import train
from raymine.step import TrainState
from support.disc_scene import write_scene, write_scene_of_eight
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


def test_checkpoint_that_was_evaluated_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, best, latest = tmp_path / "run", tmp_path / "best.safetensors", tmp_path / "latest.safetensors"
    train(request(write_scene_of_eight(tmp_path / "scene"), run, steps=200, hold_out=2))
    step = json.loads((run / "checkpoints/best.json").read_text())["step"]
    assert step < 200
    assert main(["eval", str(run), "--checkpoint", "best"]) == 0
    assert json.loads((run / "eval/metrics.json").read_text())["step"] == step
    assert main(["export", str(run), "--to", str(best), "--checkpoint", "best"]) == 0
    assert main(["export", str(run), "--to", str(latest)]) == 0
    capsys.readouterr()
    assert main(["verify", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == step
    assert main(["verify", str(run), "--model", str(best)]) == 0
    assert main(["verify", str(run), "--model", str(latest)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"was exported from the checkpoint of step 200, but that of step {step} was evaluated" in told
    assert "--checkpoint best" in told
    # An evaluation of an earlier version does not name its checkpoint: that is the latest.
    metrics = json.loads((run / "eval/metrics.json").read_text())
    (run / "eval/metrics.json").write_text(json.dumps({**metrics, "step": None}))
    assert main(["verify", str(run), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["step"] == 200
    (run / "eval/metrics.json").write_text(json.dumps({**metrics, "step": 1}))
    assert main(["verify", str(run)]) == 4
    assert "is of its checkpoint of step 1, which is not there any more" in " ".join(capsys.readouterr().err.split())


def test_every_exported_model_is_verified_onnx_included(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, files = tmp_path / "run", [tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.onnx")]
    train(request(write_scene(tmp_path / "scene"), run, steps=4))
    assert main(["eval", str(run)]) == 0
    assert main(["export", str(run), *(f"--to={file}" for file in files)]) == 0
    verify = ["verify", str(run), *(f"--model={file}" for file in files), "--json"]
    capsys.readouterr()
    assert main(verify) == 0
    assert [each["same"] for each in json.loads(capsys.readouterr().out)["models"]] == [True] * 3
    tensors, metadata = load_file(files[1]), _metadata(files[1])
    tensors["colour.0"] += 5
    save_file(tensors, files[1], metadata)
    model = onnx.load(files[2])
    for constant in model.graph.initializer:
        if constant.data_type == onnx.TensorProto.FLOAT and len(constant.dims) == 2:
            constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant) + 5, constant.name))
    onnx.save(model, files[2])
    assert main(verify) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["same"] for each in found["models"]] == [True, False, False]
    assert found["largest"] == max(each["largest"] for each in found["models"])
    files[2].write_bytes(b"not a model")
    assert main(verify) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "c.onnx cannot be rendered" in told
    assert "Verified" not in told, "files are opened before any work"
    assert main(["verify", str(run), "--model", "missing.onnx"]) == 2
    assert "error: --model missing.onnx: there is no such file." in capsys.readouterr().err


def _metadata(model: Path) -> dict[str, str]:
    with safe_open(str(model), framework="pt") as file:
        return dict(file.metadata())


def test_exported_file_is_compared_in_float32_where_kernels_render_in_float16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves move pixels by more than one level, in pictures of the evaluation, but not in an exported file."""
    run, model = tmp_path / "run", tmp_path / "model.safetensors"
    train(request(write_scene(tmp_path / "scene"), run, steps=4))

    class InHalves:
        def __init__(self, state: TrainState) -> None:
            self._exact = state.renderer()

        def render(self, rays: Rays, background: Tensor) -> Rendered:
            found = self._exact.render(rays, background)
            return replace(found, colour=(found.colour + 3 / 255).clamp(0, 1))

    monkeypatch.setattr("raymine.experiment.finished.load.renderer_for", InHalves)
    assert main(["eval", str(run)]) == 0
    assert main(["export", str(run), "--to", str(model)]) == 0
    capsys.readouterr()
    assert main(["verify", str(run), "--model", str(model), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [(each["same"], each["exact"]) for each in json.loads(out)["models"]] == [(True, False), (True, True)]
    assert "gives the images of the evaluation" in err
    assert "gives the images of the checkpoint in float32" in err
    tensors, metadata = load_file(model), _metadata(model)
    tensors["colour.0"] += 5
    save_file(tensors, model, metadata)
    assert main(["verify", str(run), "--model", str(model)]) == 1
