"""The index of runs. It is a scan of the run folders, so it cannot be out of date."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raymine import checkpoint
from raymine.errors import RunError

from .folder import LOCK, RunDir, is_run
from .lock import is_locked

IndexStatus = Literal["running", "finished", "stopped", "failed", "crashed", "unreadable"]


@dataclass(frozen=True)
class RunSummary:
    """One line of `raymine runs`. PSNR (dB) and the best step are those of the manifest.

    elapsed: training seconds. step: for a running or crashed run, that of its latest checkpoint. problem: an error
    message, or empty.
    """

    name: str
    path: Path
    scene: str
    recipe: str
    step: int
    status: IndexStatus
    started: str = ""
    elapsed: float = 0.0
    train_psnr: float | None = None
    test_psnr: float | None = None
    held_out_psnr: float | None = None
    best_step: int | None = None
    best_held_out_psnr: float | None = None
    problem: str = ""


def list_runs(root: Path) -> list[RunSummary]:
    """Every run in `root` and in its subfolders, oldest first; [] if `root` does not exist."""
    if not root.is_dir():
        return []
    found = []
    for path in _subfolders(root):
        if is_run(path):
            found.append(summarise_run(path))
        else:
            found += [summarise_run(p) for p in _subfolders(path) if is_run(p)]
    return sorted(found, key=lambda r: (r.started, r.name))


def _subfolders(path: Path) -> list[Path]:
    """Folders in `path` that are not hidden; [] if it cannot be read."""
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    except OSError:
        return []
    return [path / name for name in names if os.path.isdir(path / name)]


def summarise_run(path: Path) -> RunSummary:
    """Summarise one run. If its manifest cannot be read, the status is "unreadable" and `problem` says why."""
    run = RunDir.open(path)
    try:
        manifest = run.read_manifest()
    except RunError as error:
        return RunSummary(path.name, path, "", "", 0, "unreadable", problem=error.message)
    status: IndexStatus = manifest.status
    step = manifest.step
    if status == "running":
        # The lock tells whether it runs: a killed process leaves the status "running" but no lock.
        status = "running" if is_locked(path / LOCK) else "crashed"
        step = max([step, *checkpoint.list_steps(run.checkpoints)])
    return RunSummary(
        name=path.name,
        path=path,
        scene=manifest.scene,
        recipe=manifest.recipe,
        step=step,
        status=status,
        started=manifest.started,
        elapsed=manifest.elapsed,
        train_psnr=manifest.train_psnr,
        test_psnr=manifest.test_psnr,
        held_out_psnr=manifest.held_out_psnr,
        best_step=manifest.best_step,
        best_held_out_psnr=manifest.best_held_out_psnr,
        problem=manifest.error or "",
    )
