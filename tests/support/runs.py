"""Run folders without training, and requests for very short real runs."""

from __future__ import annotations

import hashlib
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from raymine import recipes
from raymine.checkpoint.tensor_file import write_tensors
from raymine.config import replace_fields
from raymine.contracts import Scene
from raymine.experiment import SilentObserver, StepInfo, TrainRequest
from raymine.files import json_bytes
from raymine.rundir import RunDir
from raymine.step import TrainConfig
from support.fake_training import manifest
from support.killed_run import TINY


def tiny(scene: Scene, device: str) -> TrainConfig:
    """A recipe for the command line: `--recipe support.runs:tiny`."""
    return replace_fields(recipes.build("ngp", scene, device), TINY)


def create_run(path: Path | None, root: Path = Path(), stem: str = "x") -> RunDir:
    return RunDir.create(path, root=root, stem=stem, config={"a": 1}, manifest=manifest())


def request(scene: Path, out: Path | None, steps: int = 40, **changes: object) -> TrainRequest:
    base = TrainRequest(scene, out=out, steps=steps, device="cpu", overrides=TINY, evaluate_views=1)
    return replace(base, **changes)  # type: ignore[arg-type]


def rewrite_checkpoint(path: Path, tensors: dict[str, Tensor], change: dict[str, Any]) -> None:
    """Write a checkpoint's tensors and JSON anew, with right checksums; a key that becomes None is left out."""
    body = json.loads(path.read_text())
    del body["digest"]
    mark = write_tensors(path.with_suffix(".safetensors"), tensors)
    body["tensors"] = {"file": body["tensors"]["file"], "bytes": mark.bytes, "sha256": mark.sha256}
    body = {key: value for key, value in {**body, **change}.items() if value is not None}
    path.write_bytes(json_bytes({**body, "digest": hashlib.sha256(json_bytes(body)).hexdigest()}))


class StopAt(SilentObserver):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, info: StepInfo) -> None:
        if info.step >= self.step:
            signal.raise_signal(signal.SIGINT)
