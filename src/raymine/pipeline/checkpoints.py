"""The checkpoints of a run as stages see them, without torch: which there are, their files, and which are intact."""

from __future__ import annotations

import hashlib
from pathlib import Path

from raymine.errors import RunError
from raymine.files import UnreadableFile, file_digest, json_bytes, read_json, read_object
from raymine.run_files import BEST, CHECKPOINTS, checkpoint_paths, list_steps


def last_step(run: Path) -> int:
    """The step of the latest checkpoint of a run."""
    steps = list_steps(run / CHECKPOINTS)
    if not steps:
        raise RunError(f"{run} has no checkpoint.")
    return steps[-1]


def best_step(run: Path) -> int | None:
    """The step of the checkpoint that held-out views selected; None if there is none."""
    found = read_object(run / CHECKPOINTS / BEST).get("step")
    return found if type(found) is int else None


def tensors_digest(run: Path, step: int) -> str:
    """sha256 in hex of the tensors of a checkpoint, as the checkpoint records it."""
    saved = checkpoint_paths(run / CHECKPOINTS, step).json
    try:
        return str(read_json(saved)["tensors"]["sha256"])
    except (UnreadableFile, KeyError, TypeError) as error:
        raise RunError(f"{saved} cannot be read: {error}") from error


def checkpoint_files(run: Path) -> list[Path]:
    """The files of the latest checkpoint and of the best one, which later stages read."""
    best = best_step(run)
    chosen = {last_step(run)} | ({best} if best is not None else set())
    marker = [] if best is None else [run / CHECKPOINTS / BEST]
    return [*(path for step in sorted(chosen) for path in checkpoint_paths(run / CHECKPOINTS, step)), *marker]


def damaged_checkpoints(run: Path) -> list[Path]:
    """The folder of the checkpoints of a run if training cannot mend it by going on from them, else [].

    It goes on from the latest intact checkpoint, so it makes later ones again. It cannot go on without an intact one,
    and it does not make a best checkpoint again that lies before the one from which it goes on.
    """
    best = best_step(run)
    steps = list_steps(run / CHECKPOINTS)
    newest = next((step for step in reversed(steps) if _intact(run, step)), None)
    lost = bool(steps) and newest is None
    if best is not None and newest is not None and best < newest:
        lost = not _intact(run, best)
    return [run / CHECKPOINTS] if lost else []


def _intact(run: Path, step: int) -> bool:
    """Whether both files of a checkpoint are what was written."""
    saved, tensors = checkpoint_paths(run / CHECKPOINTS, step)
    body = read_object(saved)
    if body.pop("digest", None) != hashlib.sha256(json_bytes(body)).hexdigest():
        return False
    try:
        return file_digest(tensors) == tensors_digest(run, step)
    except (UnreadableFile, RunError):
        return False
