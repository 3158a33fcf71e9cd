"""Run folders written by earlier versions: they are evaluated and resumed, and their checkpoints stay valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from raymine import checkpoint, recipes
from raymine.cli import main
from raymine.config import RunConfig, model_digest
from raymine.config.migrate import SCHEMA
from raymine.contracts import Scene
from raymine.errors import CheckpointError, RunError
from raymine.experiment import TrainRequest, load_run, train
from raymine.rundir import RunDir
from raymine.scenes.builtin import builtin_scene
from raymine.step import TrainConfig
from support.runs import rewrite_checkpoint

OLD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "config" / "schema_1.json").read_text())
OLD_DIGEST = "7d98c1ca4ee4f0e8eb57c5f70c36c537e9ac066b688ed83d56fb849d4d677022"


def old_name(name: str) -> str:
    """The name of a tensor or a scalar in schema 1."""
    for moment in ("adam.first.", "adam.second."):
        name = name.replace(f"{moment}field.", moment)
    return {"sampler.values": "occupancy.values", "sampler.swept": "occupancy.swept"}.get(name, name)


def age(run: Path, config: dict[str, Any]) -> None:
    """Rewrite a run as an earlier version stored it: its config.json, and the old names in every checkpoint."""
    (run / "config.json").write_text(json.dumps(config))
    for path in sorted((run / "checkpoints").glob("step-*.json")):
        body = json.loads(path.read_text())
        tensors = {old_name(name): value for name, value in load_file(path.with_suffix(".safetensors")).items()}
        scalars = {old_name(name): value for name, value in body["scalars"].items()}
        meta = {**body["meta"], "config": model_digest(config)}
        rewrite_checkpoint(path, tensors, {"schema": None, "scalars": scalars, "meta": meta})


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_scene(tmp_path_factory.mktemp("builtin"), size=16, train_views=4, test_views=2)


@pytest.fixture
def run(scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 4 steps by the current version, with a recipe that returns the settings of the old config."""

    def tiny(scene: Scene, device: str) -> TrainConfig:
        return RunConfig.from_json(OLD).train

    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    train(request(scene, tmp_path / "run", 4))
    return tmp_path / "run"


def request(scene: Path, out: Path, steps: int) -> TrainRequest:
    return TrainRequest(scene, out=out, resume=True, steps=steps, device="cpu", evaluate_views=0)


def config_of(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())


def check_loads_and_resumes(run: Path, scene: Path, digest: str) -> None:
    """An old run loads and resumes, and both its old and its new checkpoints can be opened."""
    before = load_run(run, device="cpu")
    assert before.step == 4
    assert train(request(scene, run, 6)).step == 6
    stored = config_of(run)
    assert stored["schema"] == SCHEMA
    assert digest in (model_digest(stored), *stored.get("earlier_digests", []))
    assert checkpoint.list_steps(run / "checkpoints") == [4, 6]
    assert load_run(run, device="cpu").step == 6
    for path in (run / "checkpoints").glob("step-00000006.*"):
        path.unlink()
    again = load_run(run, device="cpu")
    assert again.step == 4
    assert all(torch.equal(value, again.state.tensors()[name]) for name, value in before.state.tensors().items())


def test_a_run_of_schema_1_is_evaluated_and_resumed(run: Path, scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {name: value.clone() for name, value in load_run(run, device="cpu").state.tensors().items()}
    age(run, {**OLD, "scene": str(scene)})
    assert "schema" not in config_of(run)
    assert "occupancy.values" in load_file(run / "checkpoints/step-00000004.safetensors")
    body = json.loads((run / "checkpoints/step-00000004.json").read_text())
    assert body["meta"]["config"] == OLD_DIGEST
    state = load_run(run, device="cpu").state
    assert all(torch.equal(value, state.tensors()[name]) for name, value in shown.items())
    assert main(["eval", str(run), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4
    check_loads_and_resumes(run, scene, OLD_DIGEST)


def test_checkpoint_stays_valid_after_a_setting_with_default_is_added(run: Path, scene: Path) -> None:
    config = {**config_of(run), "scene": str(scene)}
    del config["train"]["amp"]
    digest = model_digest(config)
    (run / "config.json").write_text(json.dumps(config))
    path = run / "checkpoints/step-00000004.json"
    meta = {**json.loads(path.read_text())["meta"], "config": digest}
    rewrite_checkpoint(path, load_file(path.with_suffix(".safetensors")), {"meta": meta})
    check_loads_and_resumes(run, scene, digest)
    assert config_of(run)["earlier_digests"] == [digest]
    assert config_of(run)["train"]["amp"] == "auto"


def test_checkpoint_of_another_model_raises(run: Path, scene: Path) -> None:
    config = config_of(run)
    config["train"]["deterministic"] = True
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="belongs to another model: config is"):
        load_run(run, device="cpu")


def test_checkpoint_and_config_of_a_newer_schema_raise(run: Path) -> None:
    path = run / "checkpoints/step-00000004.json"
    rewrite_checkpoint(path, load_file(path.with_suffix(".safetensors")), {"schema": 99})
    with pytest.raises(CheckpointError, match=r"step-00000004\.json was made by a newer raymine: it has schema 99"):
        load_run(run, device="cpu")
    (run / "config.json").write_text(json.dumps({**config_of(run), "schema": 99}))
    with pytest.raises(RunError, match="made by a newer raymine") as caught:
        RunDir.open(run).read_config()
    assert "The run was made by raymine" in caught.value.hint
