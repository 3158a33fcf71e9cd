"""One line about a run, read from its folder without importing torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raymine.errors import RunError
from raymine.files import JSON, UnreadableFile, number_or_none, read_json
from raymine.run_files import CHECKPOINTS, EVALUATION, LOCK, MANIFEST, TAGS, checkpoint_paths, is_run, list_steps

from .lock import is_locked
from .manifest import upgraded
from .tags import read_tags

IndexStatus = Literal["running", "finished", "stopped", "failed", "crashed", "unreadable"]
STATUSES: tuple[IndexStatus, ...] = ("running", "finished", "stopped", "failed", "crashed", "unreadable")

QUICK = "quick"
"""The protocol of a run that has no evaluation: some pixels of some views, looked at while it trained.

`quick-<digest>` where the run records which views, and of what size; `quick` alone for runs of earlier versions.
"""
UNRECORDED = "unrecorded"
"""The protocol of an evaluation that does not name one."""


@dataclass(frozen=True)
class RunSummary:
    """One line of `raymine runs`. PSNR (dB) and the best step are those of the manifest.

    elapsed: training seconds. step: for a running or crashed run, that of its latest checkpoint. problem: an error
    message, or empty. eval_psnr, eval_ssim: what `raymine eval` found of the latest checkpoint on the test split; None
    if it has not been evaluated. protocol: the digest of the protocol of these scores; without them that of the quick
    score, `quick-<digest>`, or `quick` where it is not recorded. measured: the images of the protocol in words.
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
    seed: int | None = None
    eval_psnr: float | None = None
    eval_ssim: float | None = None
    protocol: str = QUICK
    measured: str = ""
    tags: tuple[str, ...] = ()

    @property
    def psnr(self) -> float | None:
        """The PSNR by which runs are ranked: that of the evaluation, else the quick one of the test views."""
        return self.test_psnr if self.eval_psnr is None else self.eval_psnr


def protocol_of(metrics: JSON) -> str:
    """The digest of the protocol in the content of an eval/metrics.json, or `UNRECORDED`.

    The only place that knows where an evaluation keeps its protocol: `protocol`, a digest or an object with one.
    """
    found = metrics.get("protocol") if isinstance(metrics, dict) else None
    found = found.get("digest") if isinstance(found, dict) else found
    return found if isinstance(found, str) and found else UNRECORDED


def _quick_protocol(recorded: JSON) -> str:
    """The protocol of a quick score, from what the manifest records of it."""
    digest = protocol_of({"protocol": recorded})
    return QUICK if digest == UNRECORDED else f"{QUICK}-{digest}"


def _in_words(protocol: JSON) -> str:
    """The images of a protocol, such as "8 of 20 test images up to 800x800"; empty if they are not recorded."""
    found = protocol if isinstance(protocol, dict) else {}
    views, available, width, height = (found.get(name) for name in ("views", "available", "width", "height"))
    split = found.get("split")
    if not (isinstance(split, str) and all(isinstance(n, int) for n in (views, available, width, height))):
        return ""
    count = f"{views}" if views == available else f"{views} of {available}"
    return f"{count} {split} images up to {width}x{height}"


def read_evaluation(path: Path) -> JSON:
    """The evaluation of a run's latest checkpoint on the test split; None if there is none, or one of an older step."""
    try:
        if (path / EVALUATION).stat().st_mtime_ns < _last_save(path):
            return None
        found = read_json(path / EVALUATION)
    except (OSError, UnreadableFile):
        return None
    return found if isinstance(found, dict) else None


def summarise_run(path: Path) -> RunSummary:
    """Summarise one run. If its manifest cannot be read, the status is "unreadable" and `problem` says why."""
    if not is_run(path):
        raise RunError(f"{path} is not a run folder: it has no {MANIFEST}.", hint="`raymine runs` lists them.")
    try:
        stored = _Fields(path / MANIFEST)
        recorded = stored.text("status")
        if recorded not in STATUSES:
            raise RunError(f"{path / MANIFEST} is damaged: `status` is {recorded!r}.")
        status: IndexStatus = recorded
        step = stored.count("step") or 0
        if status == "running":
            # The lock tells whether it runs: a killed process leaves the status "running" but no lock.
            status = "running" if is_locked(path / LOCK) else "crashed"
            step = max([step, *list_steps(path / CHECKPOINTS)])
        scores = read_evaluation(path)
        quick = stored.of("quick_protocol")
        return RunSummary(
            name=path.name,
            path=path,
            scene=stored.text("scene"),
            recipe=stored.text("recipe"),
            step=step,
            status=status,
            started=stored.text("started"),
            elapsed=stored.number("elapsed") or 0.0,
            train_psnr=stored.number("train_psnr"),
            test_psnr=stored.number("test_psnr"),
            held_out_psnr=stored.number("held_out_psnr"),
            best_step=stored.count("best_step"),
            best_held_out_psnr=stored.number("best_held_out_psnr"),
            problem=stored.text("error", "") or "",
            seed=stored.count("seed"),
            eval_psnr=None if scores is None else number_or_none(scores.get("psnr")),
            eval_ssim=None if scores is None else number_or_none(scores.get("ssim")),
            protocol=_quick_protocol(quick) if scores is None else protocol_of(scores),
            measured=_in_words(quick if scores is None else scores.get("protocol")),
            tags=read_tags(path),
        )
    except RunError as error:
        return RunSummary(path.name, path, "", "", 0, "unreadable", problem=error.message, tags=read_tags(path))


def stamp_of(path: Path) -> str:
    """Changes whenever a file changes that `summarise_run` reads, except for the lock."""
    return " ".join(_mark(path / name) for name in (MANIFEST, EVALUATION, TAGS, CHECKPOINTS))


def _mark(path: Path) -> str:
    try:
        state = os.stat(path)
    except OSError:
        return "-"
    return f"{state.st_mtime_ns}/{state.st_size}/{state.st_ino}"


def _last_save(path: Path) -> int:
    """When the latest checkpoint was saved, in nanoseconds; 0 if there is none."""
    steps = list_steps(path / CHECKPOINTS)
    return checkpoint_paths(path / CHECKPOINTS, steps[-1]).json.stat().st_mtime_ns if steps else 0


class _Fields:
    """The fields of a manifest, with the types that a summary needs; `RunError` for one that does not fit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            data = upgraded(read_json(path))
        except UnreadableFile as error:
            raise RunError(f"{path} {error.what}") from error
        if not isinstance(data, dict):
            raise RunError(f"{path} is damaged: it must be an object.")
        self._data = data

    def of(self, name: str) -> JSON:
        """The value as it is stored, or None."""
        return self._data.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        if name not in self._data and default is None:
            raise RunError(f"{self._path} is damaged: `{name}` is missing.")
        value = self._data.get(name, default)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._unfit(name, "text")
        return value

    def number(self, name: str) -> float | None:
        value = self._data.get(name)
        found = number_or_none(value)
        if value is not None and found is None:
            raise self._unfit(name, "a number")
        return found

    def count(self, name: str) -> int | None:
        value = self._data.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._unfit(name, "a whole number")
        return value

    def _unfit(self, name: str, kind: str) -> RunError:
        return RunError(f"{self._path} is damaged: `{name}` must be {kind}, got {self._data.get(name)!r:.60}.")
