"""Checkpoints of a run that had diverged, or whose JSON does not fit, are refused in a sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from raymine import checkpoint
from raymine.errors import CheckpointError, ConfigError, TrainingError
from raymine.experiment import load_run, train
from raymine.experiment.saved.restore import restore_loop
from raymine.files import json_bytes
from raymine.rundir import summarise_run
from support.disc_scene import write_scene
from support.runs import StopAt, request, rewrite_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A scene, and a run of it with checkpoints at steps 20 and 40."""
    folder = tmp_path_factory.mktemp("restore")
    scene = write_scene(folder / "scene")
    train(request(scene, folder / "run"), observer=StopAt(20))
    train(request(scene, folder / "run", resume=True))
    steps = checkpoint.list_steps(folder / "run/checkpoints")
    assert len(steps) == 2
    return scene, folder / "run"


@pytest.fixture
def run(trained: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[1], tmp_path / "run"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "checkpoints").iterdir()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("field.", torch.nan), ("average.", torch.inf), ("sampler.values", torch.inf), ("adam.second.", torch.nan)],
)
def test_checkpoint_with_non_finite_values_is_refused(
    trained: tuple[Path, Path], run: Path, name: str, value: float
) -> None:
    earlier, step = checkpoint.list_steps(run / "checkpoints")
    path = checkpoint.path_of(run / "checkpoints", step)
    tensors = load_file(path.with_suffix(".safetensors"))
    chosen = next(key for key in tensors if key.startswith(name))
    tensors[chosen].view(-1)[3] = value
    rewrite_checkpoint(path, tensors, {})
    before = files_of(run)
    resume = request(trained[0], run, steps=60, resume=True)
    for use in (lambda: load_run(run), *((lambda: train(resume),) if name == "field." else ())):
        with pytest.raises(CheckpointError, match=f"holds values that are not finite, in {chosen}") as caught:
            use()
        assert f"To use that of step {earlier} instead, move {path.stem}.json out of" in caught.value.hint
    assert files_of(run) == before
    path.rename(run / "away.json")
    assert load_run(run).step == earlier


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["scalars"].update(step="3"), r"`step` must be a whole number from 0 up, got '3'"),
        (lambda body: body["scalars"].update(horizon=-1), "`horizon` must be a whole number"),
        (lambda body: body["scalars"].pop("rays"), "lacks rays"),
        (lambda body: body["meta"].update(loop=[]), "must be an object"),
        (lambda body: body["meta"].pop("loop"), "must be an object"),
        (lambda body: body["meta"].update(loop={"elapsed": "x"}), "loop.elapsed: must be a number"),
        (lambda body: body.update(tensors=3), "tensors: must be an object"),
        (lambda body: body.update(step="x"), "step: must be a whole number"),
        (lambda body: body.update(scalars=None), "scalars: must be an object"),
        (lambda body: body.update(meta=[]), "meta: must be an object"),
    ],
)
def test_checkpoint_json_with_a_wrong_key_is_refused(run: Path, change: Callable[[Any], Any], words: str) -> None:
    for step in checkpoint.list_steps(run / "checkpoints"):
        path = checkpoint.path_of(run / "checkpoints", step)
        body = json.loads(path.read_text())
        del body["digest"]
        change(body)
        path.write_bytes(json_bytes({**body, "digest": hashlib.sha256(json_bytes(body)).hexdigest()}))
    with pytest.raises(CheckpointError, match=words):
        restore_loop(checkpoint.load(load_run(run).run.checkpoints / path.name))


def test_infinite_learning_rate_is_refused_before_a_run_is_made(tmp_path: Path, trained: tuple[Path, Path]) -> None:
    bad = request(trained[0], tmp_path / "new")
    for value in ("inf", "nan"):
        with pytest.raises(ConfigError, match="`lr` of OptimiserConfig must be a finite number"):
            train(request(trained[0], tmp_path / "new", overrides={**bad.overrides, "optimiser.lr": value}))
    assert not (tmp_path / "new").exists()


def test_learning_rate_that_overflows_fails_the_run_and_leaves_no_broken_checkpoint(
    tmp_path: Path, trained: tuple[Path, Path]
) -> None:
    tiny = request(trained[0], tmp_path / "new").overrides
    large = {**tiny, "optimiser.lr": 1e38}
    with pytest.raises(TrainingError):
        train(request(trained[0], tmp_path / "new", overrides=large))
    assert summarise_run(tmp_path / "new").status == "failed"
    for step in checkpoint.list_steps(tmp_path / "new/checkpoints"):
        found = checkpoint.load(checkpoint.path_of(tmp_path / "new/checkpoints", step))
        assert all(torch.isfinite(value).all() for value in found.tensors.values() if value.is_floating_point())
