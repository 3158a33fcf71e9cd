"""Run folders without a training."""

from __future__ import annotations

from pathlib import Path

from raymine.rundir import RunDir
from support.fake_training import manifest


def create_run(path: Path | None, root: Path = Path(), stem: str = "x") -> RunDir:
    return RunDir.create(path, root=root, stem=stem, config={"a": 1}, manifest=manifest())
