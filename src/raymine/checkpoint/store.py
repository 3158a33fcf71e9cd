"""Save, load and rotate checkpoints. They are written atomically and verified when read.

    checkpoints/step-00000120.safetensors     every tensor of the training state
    checkpoints/step-00000120.json            scalars, meta, and the size and SHA-256 of the tensor file
    checkpoints/best.json                     the best step so far, and its score

The JSON is written last and removed first, so a checkpoint exists if and only if its JSON does. It contains a digest of
itself, so that any changed bit is detected. Random numbers in raymine are a function of the step, so a checkpoint needs
no generator state.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from raymine._version import __version__
from raymine.config import from_json
from raymine.config.migrate import SCHEMA, migrate_scalars, migrate_tensors, schema_of
from raymine.errors import CheckpointError, ConfigError, option
from raymine.files import (
    JSON,
    UnreadableFile,
    finite_or_none,
    json_bytes,
    read_json,
    remove_stale_temps,
    resource_error,
    write_json,
)
from raymine.run_files import BEST, checkpoint_paths
from raymine.run_files import list_steps as list_steps

from .tensor_file import Fingerprint, read_tensors, write_tensors

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """One verified checkpoint. Tensors are on the CPU. meta: as passed to `save`. version: of raymine, when saved."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    scalars: dict[str, JSON]
    meta: dict[str, JSON]
    version: str


@dataclass(frozen=True)
class Latest:
    """The latest intact checkpoint, and the steps and problems (one sentence each) of later, damaged ones."""

    checkpoint: Checkpoint
    problems: tuple[str, ...]
    damaged: tuple[int, ...]


@dataclass(frozen=True)
class Best:
    """The best step so far: `value` of `metric`, larger is better."""

    step: int
    metric: str
    value: float


@dataclass(frozen=True)
class _TensorFile:
    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Body:
    """The JSON of a checkpoint, without its digest."""

    format: int
    version: str
    step: int
    tensors: _TensorFile
    scalars: dict[str, JSON]
    meta: dict[str, JSON]
    schema: int = 1


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, JSON],
    meta: Mapping[str, JSON],
    keep: int = 2,
) -> Path:
    """Write the checkpoint of `step`, then delete all but the latest `keep` and the best. Returns its JSON path.

    Tensors may be on any device and are saved bit for bit. If the disk is full or not writable: `ResourceError`; older
    checkpoints stay, and no incomplete file remains.
    """
    try:
        # Without its parents: a run folder that was removed must not come back without its config.
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise resource_error(error, "create the checkpoint folder", folder) from error
    json_path, tensor_path = checkpoint_paths(folder, step)
    _require_json(scalars, meta)
    # If the step is saved again, the old JSON must never stand beside new tensors.
    json_path.unlink(missing_ok=True)
    fingerprint = write_tensors(tensor_path, tensors)
    body = {
        "format": FORMAT,
        "schema": SCHEMA,
        "version": __version__,
        "step": step,
        "tensors": {"file": tensor_path.name, "bytes": fingerprint.bytes, "sha256": fingerprint.sha256},
        "scalars": dict(scalars),
        "meta": dict(meta),
    }
    try:
        write_json(json_path, {**body, "digest": _digest(body)}, "write the checkpoint")
    except BaseException:
        tensor_path.unlink(missing_ok=True)
        raise
    _rotate(folder, keep)
    return json_path


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint, given the path of its JSON or of its tensors.

    Names of tensors and scalars from earlier versions of raymine are migrated. `CheckpointError` if the checkpoint is
    damaged, or has a format that this version does not read.
    """
    json_path = path.with_suffix(".json")
    body, schema = _read_body(json_path)
    tensors = read_tensors(json_path.with_suffix(".safetensors"), Fingerprint(body.tensors.bytes, body.tensors.sha256))
    return Checkpoint(
        json_path,
        body.step,
        migrate_tensors(tensors, schema),
        migrate_scalars(body.scalars, schema),
        body.meta,
        body.version,
    )


def load_latest(folder: Path) -> Latest | None:
    """The latest intact checkpoint of `folder`; None if the folder has no checkpoint.

    Damaged checkpoints are skipped and reported in `problems`. `CheckpointError` if all are damaged, or if a later one
    has an unknown format: then an older one is no substitute.
    """
    problems: list[str] = []
    damaged: list[int] = []
    for step in reversed(list_steps(folder)):
        found = _load_or_problem(path_of(folder, step))
        if isinstance(found, Checkpoint):
            return Latest(found, tuple(problems), tuple(damaged))
        problems.append(found)
        damaged.append(step)
    if problems:
        raise CheckpointError(
            f"Every checkpoint in {folder} is damaged: " + " ".join(problems),
            hint=f"Train again with another {option('out')}, or restore the folder from a copy.",
        )
    return None


def require(checkpoint: Checkpoint, expected: Mapping[str, JSON]) -> None:
    """Raise `CheckpointError` if a value of `meta` differs from `expected` (recipe, config digest, ...).

    A tuple in `expected` lists several accepted values, the usual one first.
    """
    wanted = {key: value if isinstance(value, tuple) else (value,) for key, value in expected.items()}
    wrong = [
        f"{key} is {checkpoint.meta.get(key)!r} in the checkpoint, {values[0]!r} expected"
        for key, values in wanted.items()
        if checkpoint.meta.get(key) not in values
    ]
    if wrong:
        raise CheckpointError(
            f"{checkpoint.path} belongs to another model: {'; '.join(wrong)}.",
            hint=f"Resume with the options the run was started with, or train into another {option('out')}.",
        )


def mark_best(folder: Path, best: Best) -> None:
    """Mark the checkpoint of a step as the best, in `best.json`. Rotation then keeps it."""
    value = {"step": best.step, "metric": best.metric, "value": best.value}
    write_json(folder / BEST, value, "record the best checkpoint")


def read_best(folder: Path) -> Best | None:
    """The content of `best.json`, if the checkpoint that it names exists; else None."""
    try:
        best = from_json(Best, read_json(folder / BEST))
    except (UnreadableFile, ConfigError):
        # The marker is derived from the metrics. Without it the latest checkpoint is used.
        return None
    return best if best.step in list_steps(folder) else None


def load_best(folder: Path) -> Checkpoint | None:
    """The best checkpoint; None if no evaluation has selected one."""
    best = read_best(folder)
    return None if best is None else load(path_of(folder, best.step))


def rewind(folder: Path, step: int, best: Best | None) -> None:
    """Make `step` the latest checkpoint, before training continues from it. The run must be locked.

    Later checkpoints, which are damaged, get the suffix `.damaged`. Files that killed writers left are deleted.
    `best.json` is set to `best`, its content at `step`.
    """
    remove_stale_temps(folder)
    for later in (s for s in list_steps(folder) if s > step):
        for path in checkpoint_paths(folder, later):
            if path.exists():
                os.replace(path, path.with_name(path.name + ".damaged"))
    for orphan in folder.glob("step-*.safetensors"):
        if not orphan.with_suffix(".json").exists():
            _remove(orphan)
    if best is not None and best.step in list_steps(folder):
        mark_best(folder, best)
    else:
        _remove(folder / BEST)


class _FormatError(CheckpointError):
    """A format that this version does not read. Falling back to an older checkpoint would hide the problem."""


def _load_or_problem(path: Path) -> Checkpoint | str:
    """The checkpoint, or a sentence about its damage. An unknown format still raises."""
    try:
        return load(path)
    except _FormatError:
        raise
    except CheckpointError as error:
        return error.message


def path_of(folder: Path, step: int) -> Path:
    """The path of the JSON of the checkpoint of `step`, whether it exists or not."""
    return checkpoint_paths(folder, step).json


def _require_json(scalars: Mapping[str, JSON], meta: Mapping[str, JSON]) -> None:
    """Raise `CheckpointError` for values that JSON cannot store, before anything is written."""
    try:
        json_bytes([dict(scalars), dict(meta)])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The scalars {dict(scalars)!r} cannot be saved as JSON: {error}.") from error


def _digest(body: Mapping[str, JSON]) -> str:
    return hashlib.sha256(json_bytes(body)).hexdigest()


def _rotate(folder: Path, keep: int) -> None:
    best = read_best(folder)
    for step in list_steps(folder)[:-keep]:
        if best is None or step != best.step:
            for path in checkpoint_paths(folder, step):
                _remove(path)


def _remove(path: Path) -> None:
    """Delete a file that is no longer needed. One that cannot be deleted only takes up space."""
    with contextlib.suppress(OSError):
        path.unlink()


def _schema(path: Path, body: dict[str, Any]) -> int:
    try:
        return schema_of(body, str(path))
    except ConfigError as error:
        raise _FormatError(error.message, hint=error.hint) from error


def _read_body(path: Path) -> tuple[_Body, int]:
    """The verified JSON of a checkpoint, and its schema."""
    if not os.path.lexists(path):
        raise CheckpointError(f"There is no checkpoint {path}.")
    try:
        body = read_json(path)
    except UnreadableFile as error:
        raise CheckpointError(f"{path} is damaged: it {error.what}") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{path} is damaged: it is not a JSON object.")
    stored = body.pop("digest", None)
    # Check the format first: another format may define its digest differently.
    if isinstance(body.get("format"), int) and body["format"] != FORMAT:
        raise _FormatError(
            f"{path} has checkpoint format {body['format']}, written by raymine {body.get('version', 'unknown')}; "
            f"this is raymine {__version__}, which reads format {FORMAT}.",
            hint=f"Use raymine {body.get('version', 'of that version')}, or train again with another {option('out')}.",
        )
    if finite_or_none(body) != body or stored != _digest(body):
        raise CheckpointError(f"{path} is damaged: its content does not match its digest.")
    schema = _schema(path, body)
    try:
        return from_json(_Body, body), schema
    except ConfigError as error:
        raise CheckpointError(f"{path} is damaged: {error.message}") from error
