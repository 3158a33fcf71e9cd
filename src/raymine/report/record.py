"""What a report says about a run, read from its folder. Neither the scene nor the model is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raymine import checkpoint
from raymine.files import UnreadableFile, flattened, number_or_none, read_json
from raymine.metrics_log import Row, read_rows
from raymine.run_files import EVALUATION, checkpoint_paths
from raymine.rundir import Manifest, RunDir, summarise_run


@dataclass(frozen=True)
class Scores:
    """What `raymine eval` wrote: mean PSNR (dB) and SSIM, None where there is none, and those of each view.

    views: (name, PSNR, SSIM). stale: whether the run was trained further since.
    """

    psnr: float | None
    ssim: float | None
    views: tuple[tuple[str, float | None, float | None], ...]
    fitted_psnr: float | None = None
    stale: bool = False


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder describes it. status: as `raymine runs` shows it. config: config.json as it is stored."""

    path: Path
    label: str
    status: str
    manifest: Manifest
    config: dict[str, Any]
    rows: tuple[Row, ...]
    events: tuple[Row, ...]
    scores: Scores | None
    checkpoint_bytes: int

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, training seconds and values of a column of the metrics; `extra.tau` reaches into `extra`."""
        found = []
        for row in self.training:
            inner, _, last = name.rpartition(".")
            source = row.get(inner, {}) if inner else row
            value = source.get(last) if isinstance(source, dict) else None
            if _is_number(value) and _is_number(row.get("step")) and _is_number(row.get("elapsed")):
                found.append((row["step"], row["elapsed"], value))
        table = np.array(found, dtype=np.float64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]

    @property
    def training(self) -> list[Row]:
        """The metric rows of training steps."""
        return [row for row in self.rows if row.get("kind") == "train"]

    def looks(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, training seconds and PSNR of the quick evaluations of a split. Seconds are interpolated."""
        steps, seconds, _ = self.series("lr")
        found = [row for row in self.rows if row.get("kind") == "eval" and row.get("split") == split]
        pairs = [(row["step"], row["psnr"]) for row in found if _is_number(row.get("step")) and _is_number(row["psnr"])]
        table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        at = np.interp(table[:, 0], steps, seconds) if len(steps) else np.zeros(len(table))
        return table[:, 0], at, table[:, 1]

    @property
    def share(self) -> float | None:
        """Trained / marched samples over the last tenth of the rows."""
        return _ratio(self.training[-max(1, len(self.training) // 10) :])

    @property
    def mean_share(self) -> float | None:
        """Trained / marched samples over the whole run."""
        return _ratio(self.training)

    @property
    def wall(self) -> float | None:
        """Wall-clock seconds of all attempts; None if none has ended."""
        known = [attempt.wall for attempt in self.manifest.attempts if attempt.wall is not None]
        return sum(known) if known else None

    @property
    def stages(self) -> dict[str, float]:
        """Wall-clock seconds by stage, summed over the attempts."""
        total: dict[str, float] = {}
        for attempt in self.manifest.attempts:
            for name, seconds in attempt.stages.items():
                total[name] = total.get(name, 0.0) + seconds
        return total

    @property
    def memory(self) -> dict[str, int]:
        """Peak bytes, `host` and `device`, over the attempts; empty for runs of earlier versions."""
        attempts = self.manifest.attempts
        peaks = {
            "host": max((attempt.peak_memory or 0 for attempt in attempts), default=0),
            "device": max((attempt.peak_device_memory or 0 for attempt in attempts), default=0),
        }
        return {name: size for name, size in peaks.items() if size}

    @property
    def psnr(self) -> float | None:
        """PSNR on the test views: of `raymine eval`, else of the quick evaluation at the end."""
        return self.scores.psnr if self.scores is not None else self.manifest.test_psnr

    @property
    def setting_values(self) -> dict[str, str]:
        """Every setting of the config by its dotted name."""
        return {name: "none" if value is None else str(value) for name, value in flattened(self.config).items()}

    @property
    def policy(self) -> str:
        """The mining policy; empty if the config has none."""
        train = self.config.get("train")
        mining = train.get("mining") if isinstance(train, dict) else None
        return str(mining.get("policy", "")) if isinstance(mining, dict) else ""


def read_runs(paths: tuple[Path, ...]) -> list[RunRecord]:
    """Read run folders, in the order given; `RunError` for one that is none. Their labels differ."""
    runs = [_read(path) for path in paths]
    names = [run.path.resolve().name for run in runs]
    labels = [str(run.path) if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]
    # A name that is not valid UTF-8 can neither be written nor drawn.
    labels = [label.encode("utf-8", "replace").decode() for label in labels]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _read(path: Path) -> RunRecord:
    run = RunDir.open(path)
    manifest, config = run.read_manifest(), run.read_config_json()
    steps = checkpoint.list_steps(run.checkpoints)
    tensors = [checkpoint_paths(run.checkpoints, step).tensors for step in steps[-1:]]
    return RunRecord(
        path=path,
        label=path.name,
        status=summarise_run(path).status,
        manifest=manifest,
        config=config if isinstance(config, dict) else {},
        rows=tuple(read_rows(run.metrics)),
        events=tuple(read_rows(run.events)),
        scores=_scores(path / EVALUATION, run.checkpoints, steps),
        checkpoint_bytes=sum(file.stat().st_size for file in tensors if file.exists()),
    )


def _scores(metrics: Path, checkpoints: Path, steps: list[int]) -> Scores | None:
    try:
        found: Any = read_json(metrics)
    except UnreadableFile:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("images"), list):
        return None
    views = tuple(
        (str(view.get("name")), number_or_none(view.get("psnr")), number_or_none(view.get("ssim")))
        for view in found["images"]
        if isinstance(view, dict)
    )
    fitted = found.get("fitted")
    newest = checkpoint.path_of(checkpoints, steps[-1]) if steps else None
    return Scores(
        number_or_none(found.get("psnr")),
        number_or_none(found.get("ssim")),
        views,
        number_or_none(fitted.get("psnr")) if isinstance(fitted, dict) else None,
        newest is not None and newest.exists() and os.path.getmtime(newest) > os.path.getmtime(metrics),
    )


def _ratio(rows: list[Row]) -> float | None:
    marched = sum(float(row["marched"]) for row in rows if _is_number(row.get("marched")))
    trained = sum(float(row["trained"]) for row in rows if _is_number(row.get("trained")))
    return trained / marched if marched else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
