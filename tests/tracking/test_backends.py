"""Trackers: TensorBoard with its own reader, trackio and MLflow by what they are called with."""

from __future__ import annotations

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


def test_mlflow_gets_parameters_metrics_and_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = []

    class Client:
        def __init__(self, **places: str) -> None:
            calls.append(("places", tuple(places.values())))

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_run(self, *args: object, **options: object) -> Any:
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: calls.append((name, args))

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    tracking = types.ModuleType("mlflow.tracking")
    tracking.MlflowClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    monkeypatch.chdir(tmp_path)
    thread = SinkThread("mlflow", make_sink("mlflow", described(tmp_path)))
    thread.offer(7, {"train/psnr": 20.0})
    thread.close()
    assert thread.problem == ""
    assert calls == [
        ("places", ((tmp_path / "mlruns").as_uri(),) * 2),
        ("create_experiment", ("raymine",)),
        ("log_param", ("r", "seed", "3")),
        ("log_metric", ("r", "train/psnr", 20.0)),
        ("set_terminated", ("r",)),
    ]


def test_unknown_and_missing_trackers_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Did you mean `tensorboard`"):
        require_backends(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in BACKENDS:
        with pytest.raises(MissingExtraError, match=rf"raymine\[{name}\]"):
            require_backends([name])
