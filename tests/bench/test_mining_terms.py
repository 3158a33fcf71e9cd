"""`bench mining` of models whose loss knows more than colours: masks, depths, exposures, refined poses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymine import recipes
from raymine.bench import MiningRequest, bench_mining
from raymine.losses import ColourLoss, DepthLoss, MaskLoss
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support.rings import write_ring
from support.step import CONFIG


def write_ring_with_depths(folder: Path) -> Path:
    """The ring with a depth map of 4 units for each training view."""
    listed = write_ring(folder) / "transforms_train.json"
    document = json.loads(listed.read_text())
    for number, frame in enumerate(document["frames"]):
        np.save(folder / f"d{number}.npy", np.full((8, 8), 4.0, np.float32))
        frame["depth_file_path"] = f"./d{number}.npy"
    listed.write_text(json.dumps(document))
    return folder


def test_masks_depths_exposures_and_poses_are_part_of_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(
        CONFIG,
        loss=(ColourLoss("l2"), MaskLoss(), DepthLoss()),
        exposure=ExposureConfig(),
        poses=PoseConfig(),
    )
    monkeypatch.setitem(recipes.RECIPES, "ngp", lambda scene, device: config)
    scene = write_ring_with_depths(tmp_path / "ring")
    asked = MiningRequest(scene, "none,hard", 0.2, device="cpu", out=tmp_path / "out", page=False)
    document = bench_mining(asked).document
    assert document.complete
    assert [run.policy for run in document.runs] == ["none", "hard"]
    assert all(run.looks[-1].diagnosis.samples > 0 and run.pictures for run in document.runs)
