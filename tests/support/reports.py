"""A run folder with metrics, events and an evaluation, written without training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raymine import pictures
from raymine.rundir import Attempt, Environment, RunDir
from support.fake_training import manifest

CONFIG: dict[str, Any] = {
    "scene": "fake",
    "train": {"mining": {"policy": "hard"}, "loss": [{"kind": "l2"}], "batch": {"samples": 64}},
    "seed": 0,
}


def write_run(path: Path, *, config: dict[str, Any] = CONFIG, views: int = 3, rows: int = 12) -> Path:
    """A finished run with `rows` metric rows, two quick evaluations, a warning, and `views` evaluated views."""
    environment = Environment("0.1", "abc", "3.11", "test", {"torch": "2"}, "cpu: A <fast> CPU", 2)
    attempt = Attempt(("raymine", "train", "fake"), 1, 0, "2030", environment, "2030", 12.5, 2.0)
    attempt = replace(attempt, stages={"training": 10.0, "scene": 2.5}, peak_memory=3 << 20)
    described = manifest(
        status="finished",
        step=16 * rows,
        elapsed=10.0,
        test_psnr=25.0,
        train_psnr=24.0,
        environment=environment,
        attempts=(attempt,),
    )
    with RunDir.create(path, root=path.parent, stem="x", config=config, manifest=described):
        pass
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows(rows)))
    event = {"time": "2030", "kind": "rollback", "level": "warning", "step": 3, "message": "went <back> & on"}
    events = ({**event, "kind": "start", "level": "info"}, event)
    (path / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    if views:
        _write_evaluation(path / "eval", views)
    return path


def _rows(count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(count):
        row = {"kind": "train", "step": 16 * (i + 1), "loss": 0.1 / (i + 1), "psnr": 10.0 + i, "rays": 100 + i}
        row |= {"marched": 1000, "trained": 500 - 20 * i, "lr": 0.01, "extra": {"tau": 1.0 + i}}
        rows.append({**row, "elapsed": 10.0 * (i + 1) / count, "samples_per_second": 1e6})
        if i in (count // 2, count - 1):
            rows.append({"kind": "eval", "step": row["step"], "split": "test", "psnr": 20.0 + i, "views": 2})
    return rows


def _write_evaluation(folder: Path, views: int) -> None:
    images = [{"name": f"v{i}", "psnr": 30.0 - i, "ssim": 0.9} for i in range(views)]
    (folder / "images").mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"psnr": 29.0, "ssim": 0.9, "images": images}))
    left = np.zeros((40, 60, 3))
    left[:, :30] = (1.0, 0.2, 0.1)
    for image in images:
        for kind, picture in (("true", left), ("pred", 1.0 - left), ("error", left)):
            pictures.write_png(folder / "images" / f"{image['name']}-{kind}.png", picture)
