"""A run with trackers: metrics arrive, and a tracker that hangs or fails changes nothing but one warning."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import raymine
from raymine import tracking
from raymine.errors import ConfigError
from raymine.experiment import train
from raymine.metrics_log import read_rows
from raymine.tracking.backends import Backend
from support.disc_scene import write_scene
from support.fake_training import deterministic
from support.runs import request


class Sink:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, values: dict[str, float]) -> None:
        self.rows.append((step, values))

    def close(self) -> None:
        return


class Hanging(Sink):
    def write(self, step: int, values: dict[str, float]) -> None:
        threading.Event().wait(60)


def use(monkeypatch: pytest.MonkeyPatch, sink: Sink) -> None:
    monkeypatch.setitem(tracking.BACKENDS, "tensorboard", Backend("json", lambda run: sink))


def test_metrics_of_training_and_evaluation_reach_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    use(monkeypatch, sink)
    train(request(write_scene(tmp_path / "scene"), tmp_path / "run", track=("tensorboard",)))
    rows = read_rows(tmp_path / "run/metrics.jsonl")
    told = {(step, name): value for step, values in sink.rows for name, value in values.items()}
    for row in rows:
        name = "train/psnr" if row["kind"] == "train" else "test/psnr"
        assert told[row["step"], name] == row["psnr"]


def test_hanging_tracker_leaves_the_run_as_it_is_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = write_scene(tmp_path / "scene")
    train(request(scene, tmp_path / "plain"))
    monkeypatch.setattr(
        "raymine.experiment.watchers.companions.SinkThread",
        lambda name, make: tracking.SinkThread(name, make, patience=0.2),
    )
    use(monkeypatch, Hanging())
    started = time.perf_counter()
    result = train(request(scene, tmp_path / "run", track=("tensorboard",)))
    assert time.perf_counter() - started < 20
    assert result.status == "finished"
    warnings = [row for row in read_rows(tmp_path / "run/events.jsonl") if row["kind"] == "tracker"]
    assert [row["message"] for row in warnings] == [
        "the tracker tensorboard did not finish within 0.2 s; the run goes on without it"
    ]
    a, b = (deterministic(read_rows(tmp_path / name / "metrics.jsonl")) for name in ("plain", "run"))
    assert a == b


def test_python_takes_the_same_names_and_refuses_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`track='tensorbord'`: there is no such tracker\. Did you mean"):
        raymine.train(write_scene(tmp_path / "scene"), track="tensorbord", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
