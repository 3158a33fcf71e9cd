"""The programs that metrics can go to, by the name that users give to `--track`. One entry of `BACKENDS` for each."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, MissingExtraError, did_you_mean, option
from raymine.files import UnreadableFile, read_json, write_json

from .sink import RunDescription, Sink

_MLFLOW = "mlflow.json"


class TensorBoardSink:
    """Writes event files to `tensorboard` in the run folder: `tensorboard --logdir runs` shows them."""

    def __init__(self, run: RunDescription) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._file: Any = EventFileWriter(str(run.folder / "tensorboard"))
        if run.step:
            # What an interrupted process wrote after the step that we continue from is not shown.
            start = SessionLog(status=SessionLog.SessionStatus.START)
            self._file.add_event(Event(session_log=start, step=run.step + 1))

    def write(self, step: int, values: dict[str, float]) -> None:
        import time

        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=scalars)))

    def close(self) -> None:
        self._file.close()


class TrackioSink:
    """Logs to a project of trackio named after the scene; `trackio show` opens it."""

    def __init__(self, run: RunDescription) -> None:
        import trackio

        self._trackio: Any = trackio
        name = run.folder.name
        config = {key: str(value) for key, value in run.settings.items()}
        trackio.init(
            project=f"raymine-{Path(run.scene).name}",
            name=name,
            config=config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class MlflowSink:
    """Logs to the experiment `raymine` of MLflow, at MLFLOW_TRACKING_URI or in ./mlruns.

    `mlflow.json` in the run folder has the id of the run there, which a resumed run continues.
    """

    def __init__(self, run: RunDescription) -> None:
        here = None
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # The small package of MLflow has no database. It writes files if it is told that this is meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            here = (Path.cwd() / "mlruns").as_uri()
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=here, registry_uri=here)
        # An address may hold a password, so it is not stored as it is.
        place = here or os.environ.get("MLFLOW_TRACKING_URI", "")
        place = hashlib.sha256(place.encode()).hexdigest()[:12]
        begun = self._begun(run.folder / _MLFLOW, place)
        self._run: str = self._started(run.folder.name) if begun is None else begun.info.run_id
        if begun is None:
            write_json(run.folder / _MLFLOW, {"run_id": self._run, "place": place}, "write the id of the MLflow run")
        else:
            self._client.update_run(self._run, status="RUNNING")
        # A parameter of MLflow cannot be changed, and a resumed run may have more steps than it began with.
        known = {} if begun is None else begun.data.params
        for setting, value in run.settings.items():
            name = setting.replace("[", ".").replace("]", "")  # MLflow takes no brackets
            if name not in known:
                self._client.log_param(self._run, name, str(value)[:500])

    def _started(self, name: str) -> str:
        """The id of a new run."""
        found = self._client.get_experiment_by_name("raymine")
        experiment = self._client.create_experiment("raymine") if found is None else found.experiment_id
        started: str = self._client.create_run(experiment, run_name=name).info.run_id
        return started

    def _begun(self, path: Path, place: str) -> Any:
        """The run that an earlier process began at the same place; None if there is none, or if it was deleted."""
        try:
            stored = read_json(path)
        except UnreadableFile:
            return None
        if not isinstance(stored, dict) or stored.get("place") != place:
            return None
        try:
            found = self._client.get_run(stored.get("run_id"))
        except Exception:  # of MLflow, for a run that is not there
            return None
        return None if found.info.lifecycle_stage == "deleted" else found

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


@dataclass(frozen=True)
class Backend:
    """package: the module that must be installed, by the extra of the same name as the backend."""

    package: str
    make: Callable[[RunDescription], Sink]


BACKENDS: dict[str, Backend] = {
    "tensorboard": Backend("tensorboard", TensorBoardSink),
    "trackio": Backend("trackio", TrackioSink),
    "mlflow": Backend("mlflow", MlflowSink),
}


def require_backends(names: Sequence[str]) -> None:
    """Raise `ConfigError` for an unknown name and `MissingExtraError` for a package that is not installed."""
    for name in names:
        if name not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ConfigError(
                f"{option('track', name)}: there is no such tracker.{did_you_mean(name, BACKENDS)}",
                hint=f"Trackers: {known}.",
            )
        if importlib.util.find_spec(BACKENDS[name].package) is None:
            raise MissingExtraError(BACKENDS[name].package, name, f"Tracking with {name}")


def make_sink(name: str, run: RunDescription) -> Callable[[], Sink]:
    """The function that opens a sink; call it on the thread of the sink."""
    return partial(BACKENDS[name].make, run)
