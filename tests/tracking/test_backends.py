"""Trackers: TensorBoard with its own reader, trackio and MLflow by what they are called with."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from raymine.errors import ConfigError, MissingExtraError
from raymine.tracking import BACKENDS, RunDescription, SinkThread, make_sink, require_backends


def described(folder: Path, step: int = 0) -> RunDescription:
    return RunDescription(folder, "/data/lego", "ngp", {"seed": 3}, step)


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for start in (0, 2):
        thread = SinkThread("tensorboard", make_sink("tensorboard", described(tmp_path, start)))
        for step in range(start + 1, start + 4):
            thread.offer(step, {"train/psnr": 10.0 * step + start})
        thread.close()
        assert thread.problem == ""
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(row.step, row.value) for row in found.Scalars("train/psnr")] == [
        (1, 10.0),
        (2, 20.0),
        (3, 32.0),
        (4, 42.0),
        (5, 52.0),
    ], "the rows after the step that the run continued from are replaced"


class Recorder(types.ModuleType):
    """A module that records every call of any of its functions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **options: self.calls.append((name, args))


def test_trackio_gets_the_run_its_rows_and_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = Recorder("trackio")
    monkeypatch.setitem(sys.modules, "trackio", module)
    thread = SinkThread("trackio", make_sink("trackio", described(tmp_path)))
    thread.offer(7, {"train/psnr": 20.0})
    thread.close()
    assert thread.problem == ""
    assert [name for name, _ in module.calls] == ["init", "log", "finish"]


class Server:
    """A stand-in for MLflow that keeps its runs; `calls` are those of the clients, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.runs: dict[str, Any] = {}

    def client(self, **places: str) -> Any:
        self.calls.append(("places", tuple(places.values())))
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_run(self, *args: object, **options: object) -> Any:
        name = f"r{len(self.runs)}"
        info = types.SimpleNamespace(run_id=name, lifecycle_stage="active")
        self.runs[name] = types.SimpleNamespace(info=info, data=types.SimpleNamespace(params={}))
        return self.runs[name]

    def get_run(self, name: str) -> Any:
        return self.runs[name]

    def log_param(self, run: str, name: str, value: str) -> None:
        self.calls.append(("log_param", (run, name, value)))
        assert name not in self.runs[run].data.params, "MLflow refuses to change a parameter"
        self.runs[run].data.params[name] = value

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append((name, (*args, *options.values())))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    server = Server()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    tracking = types.ModuleType("mlflow.tracking")
    tracking.MlflowClient = server.client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    monkeypatch.chdir(tmp_path)
    return server


def track_with_mlflow(server: Server, run: RunDescription, step: int) -> list[tuple[str, tuple[Any, ...]]]:
    """What MLflow is called with by one process that trains the run."""
    before = len(server.calls)
    thread = SinkThread("mlflow", make_sink("mlflow", run))
    thread.offer(step, {"train/psnr": 20.0})
    thread.close()
    assert thread.problem == ""
    return server.calls[before:]


def test_mlflow_gets_parameters_metrics_and_the_end(mlflow: Server, tmp_path: Path) -> None:
    assert track_with_mlflow(mlflow, described(tmp_path), 7) == [
        ("places", ((tmp_path / "mlruns").as_uri(),) * 2),
        ("create_experiment", ("raymine",)),
        ("log_param", ("r0", "seed", "3")),
        ("log_metric", ("r0", "train/psnr", 20.0, 7)),
        ("set_terminated", ("r0",)),
    ]


def test_a_resumed_run_continues_its_run_of_mlflow(mlflow: Server, tmp_path: Path) -> None:
    track_with_mlflow(mlflow, described(tmp_path), 7)
    resumed = RunDescription(tmp_path, "/data/lego", "ngp", {"seed": 3, "steps": 20}, 7)
    assert track_with_mlflow(mlflow, resumed, 9)[1:] == [
        ("update_run", ("r0", "RUNNING")),
        ("log_param", ("r0", "steps", "20")),
        ("log_metric", ("r0", "train/psnr", 20.0, 9)),
        ("set_terminated", ("r0",)),
    ]
    assert list(mlflow.runs) == ["r0"]


@pytest.mark.parametrize("loss", ["deleted", "unknown", "damaged", "elsewhere"])
def test_a_run_of_mlflow_that_is_gone_is_begun_anew(
    mlflow: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    track_with_mlflow(mlflow, described(tmp_path), 7)
    if loss == "deleted":
        mlflow.runs["r0"].info.lifecycle_stage = "deleted"
    elif loss == "unknown":
        mlflow.runs["other"] = mlflow.runs.pop("r0")
    elif loss == "damaged":
        (tmp_path / "mlflow.json").write_text("[")
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:5000")
    assert ("set_terminated", ("r1",)) in track_with_mlflow(mlflow, described(tmp_path, 7), 9)
    assert json.loads((tmp_path / "mlflow.json").read_text())["run_id"] == "r1"
    assert "secret" not in (tmp_path / "mlflow.json").read_text()


def test_unknown_and_missing_trackers_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Did you mean `tensorboard`"):
        require_backends(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in BACKENDS:
        with pytest.raises(MissingExtraError, match=rf"raymine\[{name}\]"):
            require_backends([name])
