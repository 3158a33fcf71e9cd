"""`--profile`: a trace and a table, and the same model as without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from raymine.experiment import train
from raymine.experiment.finished.reproduce import compare_results
from raymine.metrics_log import read_rows
from support.disc_scene import write_scene
from support.runs import request


def test_profile_is_written_and_changes_nothing(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene")
    train(request(scene, tmp_path / "plain", steps=20))
    train(request(scene, tmp_path / "run", steps=20, profile=True))
    assert compare_results(tmp_path / "plain", tmp_path / "run").verdict == "equal"
    assert json.loads((tmp_path / "run/profile/trace.json").read_text())["traceEvents"]
    table = (tmp_path / "run/profile/summary.txt").read_text()
    assert table.startswith("5 steps\n"), "those from the tenth step to the next evaluation"
    assert "aten::" in table
    assert "raymine steps" in table, "where what runs outside of torch is counted"
    events = [row for row in read_rows(tmp_path / "run/events.jsonl") if row["kind"] == "profile"]
    assert [row["level"] for row in events] == ["info"]


def test_profiler_that_fails_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(torch.profiler, "profile", fail)
    result = train(request(write_scene(tmp_path / "scene"), tmp_path / "run", steps=12, profile=True))
    assert result.status == "finished"
    events = [row for row in read_rows(tmp_path / "run/events.jsonl") if row["kind"] == "profile"]
    assert [(row["level"], row["message"]) for row in events] == [
        ("warning", "the profiler could not be started: no profiler here")
    ]
