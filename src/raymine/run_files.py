"""The names of the files of a run folder, for code that must not import torch. Imports nothing of raymine."""

from __future__ import annotations

import os
import re
from pathlib import Path

CONFIG, MANIFEST, LOCK = "config.json", "manifest.json", ".lock"
TAGS, IMAGES, EVALUATION = "tags.json", "images.json", "eval/metrics.json"
CHECKPOINTS = "checkpoints"

_CHECKPOINT = re.compile(r"step-(\d{8,})\.json")


def is_run(path: Path) -> bool:
    """Whether `path` is a run folder: it has a manifest, readable or not."""
    return os.path.lexists(path / MANIFEST)


def list_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, intact or damaged, ascending."""
    try:
        matches = [_CHECKPOINT.fullmatch(name) for name in os.listdir(folder)]
    except OSError:
        return []
    return sorted(int(m.group(1)) for m in matches if m)
