"""The table of scores: per scene, and the mean of what every scene has."""

from __future__ import annotations

import json
from pathlib import Path

from raymine.pipeline.table import mean, scores


def test_scores_come_from_evaluations_and_manifests(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    attempts = [
        {"wall": 5.0, "peak_memory": 100, "environment": {"device": "cpu: x"}},
        {"wall": 7.0, "peak_memory": 50, "peak_device_memory": 9, "environment": {"device": "cuda: y"}},
    ]
    stored = {"recipe": "ngp", "step": 30, "elapsed": 3.0, "attempts": attempts}
    (run / "manifest.json").write_text(json.dumps(stored))
    evaluated = {"psnr": 30.0, "ssim": 0.9, "lpips_vgg": 0.2, "count": 4, "protocol": {"digest": "p"}}
    found = scores({"a": {"train": {"run": str(run)}, "eval": evaluated}, "b": {"eval": {**evaluated, "psnr": 20.0}}})
    assert (found[0].psnr, found[0].views, found[0].protocol, found[0].wall) == (30.0, 4, "p", 12.0)
    assert (found[0].memory, found[0].device_memory, found[0].device) == (100, 9, "cuda: y")
    line = mean(found)
    assert (line.lpips_alex, line.lpips_vgg) == (None, 0.2)
    assert (line.psnr, line.protocol, line.wall, line.memory) == (25.0, "p", None, 100)


def test_scene_that_failed_has_an_empty_line_and_no_mean() -> None:
    found = scores({"a": {}, "b": {"eval": {"psnr": 20.0}}})
    assert (found[0].psnr, mean(found).psnr, mean(found).protocol) == (None, None, "several")
