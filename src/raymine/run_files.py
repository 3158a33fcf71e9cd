"""The names of the files of a run folder, for code that must not import torch. Imports nothing of raymine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

CONFIG, MANIFEST, LOCK = "config.json", "manifest.json", ".lock"
TAGS, IMAGES, EVALUATION = "tags.json", "images.json", "eval/metrics.json"
METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
CHECKPOINTS, BEST = "checkpoints", "best.json"

_CHECKPOINT = re.compile(r"step-(\d{8,})\.json")


def is_run(path: Path) -> bool:
    """Whether `path` is a run folder: it has a manifest, readable or not."""
    return os.path.lexists(path / MANIFEST)


class CheckpointPaths(NamedTuple):
    """The files of a checkpoint, in the order in which they are removed: it exists while its JSON does."""

    json: Path
    tensors: Path


def checkpoint_paths(folder: Path, step: int) -> CheckpointPaths:
    """The files of the checkpoint of `step` in a folder of checkpoints, whether they exist or not."""
    return CheckpointPaths(folder / f"step-{step:08d}.json", folder / f"step-{step:08d}.safetensors")


def list_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, intact or damaged, ascending."""
    try:
        matches = [_CHECKPOINT.fullmatch(name) for name in os.listdir(folder)]
    except OSError:
        return []
    return sorted(int(m.group(1)) for m in matches if m)
