"""The files of an evaluation: metrics.json, and pictures that are encoded beside rendering.

    metrics.json                                        the scores of every view
    images/<name>-{pred,true,error,depth,opacity}.png   predicted, true, error, depth, opacity
    images/<name>-sheet.png                             the first four of them, side by side, with the scores

Everything is written into a folder of its own first, and takes the place of an earlier evaluation when it is complete.
So the files of a folder belong to one evaluation, and one that fails changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from raymine import pictures
from raymine.errors import ConfigError, option
from raymine.files import JSON, UnreadableFile, atomic_file, json_bytes, read_json, resource_error, staging_folder
from raymine.workers import Workers

if TYPE_CHECKING:
    from .views import ViewScore

PictureChoice = Literal["all", "few", "none"]
"""The views whose pictures are written: every view, the first `FEW`, or none."""

FEW = 4
KINDS = ("pred", "true", "error", "depth", "opacity", "sheet")

_PIXELS = 1 << 24
"""Pixels of views whose pictures are unfinished: 100 bytes each while they are written, so up to 1.7 GB."""


class EvaluationFiles:
    """The files of the evaluation that `evaluation_files` is writing."""

    def __init__(self, folder: Path, staging: Path, workers: Workers) -> None:
        self._folder, self._images = folder, folder / "images"
        self._staging, self._workers = staging, workers
        self._files: list[str] = []

    def add(
        self, score: ViewScore, predicted: np.ndarray, truth: np.ndarray, depth: np.ndarray, opacity: np.ndarray
    ) -> None:
        """Write the pictures of a view, on another thread: predicted, truth [H, W, 3] in 0..1; depth, opacity [H, W].

        The arrays must not change afterwards. Waits if too many views are unfinished, and raises the error of an
        earlier one that could not be written.
        """
        self._workers.submit(partial(self._write, score, predicted, truth, depth, opacity), depth.size)
        self._files += [f"{score.name}-{kind}.png" for kind in KINDS]

    def finish(self) -> None:
        """Wait until all pictures are written."""
        self._workers.finish()

    def publish(self, metrics: Mapping[str, JSON]) -> None:
        """Replace the earlier evaluation in the folder by this one. metrics: the content of metrics.json."""
        self.finish()
        scores = self._folder / "metrics.json"
        # In this order, a process that is killed in between leaves no pictures beside the scores of another evaluation.
        with atomic_file(scores, "write the metrics") as file:
            file.write(json_bytes(metrics))
            for name in _earlier_names(scores):
                for kind in KINDS:
                    (self._images / f"{name}-{kind}.png").unlink(missing_ok=True)
        if self._files:
            self._images.mkdir(exist_ok=True)
        for name in self._files:
            os.replace(self._staging / name, self._images / name)

    def _write(self, score: ViewScore, *view: np.ndarray) -> None:
        for kind, picture in _pictures_of(score, *view).items():
            name = f"{score.name}-{kind}.png"
            try:
                pictures.save_png(self._staging / name, picture)
            except OSError as error:
                raise resource_error(error, "write the picture", self._images / name) from error


@contextmanager
def evaluation_files(folder: Path) -> Iterator[EvaluationFiles]:
    """Yield the writer of an evaluation. Nothing in `folder` changes before `EvaluationFiles.publish`."""
    with staging_folder(folder, "write the evaluation") as staging, Workers(room=_PIXELS) as workers:
        yield EvaluationFiles(folder, staging, workers)


def views_with_pictures(choice: PictureChoice, views: int) -> int:
    """The number of views, from the first on, whose pictures are written. `ConfigError` for an unknown choice."""
    if choice not in get_args(PictureChoice):
        raise ConfigError(f"{option('pictures')} must be one of {', '.join(get_args(PictureChoice))}, got {choice!r}.")
    return {"all": views, "few": min(FEW, views), "none": 0}[choice]


def unique_names(names: Sequence[str]) -> list[str]:
    """File-safe names, in the same order. A repeated name gets a number, so that no file overwrites another."""
    taken: set[str] = set()
    result = []
    for name in names:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "view"
        candidate, number = safe, 2
        while candidate in taken:
            candidate, number = f"{safe}-{number}", number + 1
        taken.add(candidate)
        result.append(candidate)
    return result


def _earlier_names(metrics: Path) -> list[str]:
    """The names of the views in the metrics.json of an earlier evaluation; none if there is none to read."""
    try:
        found = read_json(metrics)
    except UnreadableFile:
        return []
    views = found.get("images") if isinstance(found, dict) else None
    names = [view.get("name") for view in views if isinstance(view, dict)] if isinstance(views, list) else []
    # A file of another origin could hold names that lead out of the folder.
    return [name for name in names if isinstance(name, str) and [name] == unique_names([name])]


def _pictures_of(
    score: ViewScore, predicted: np.ndarray, truth: np.ndarray, depth: np.ndarray, opacity: np.ndarray
) -> dict[str, np.ndarray]:
    """A picture of each kind, [H, W, 3] uint8."""
    kinds = {
        "pred": pictures.to_uint8(predicted),
        "true": pictures.to_uint8(truth),
        "error": pictures.error_picture(predicted, truth),
        "depth": pictures.depth_picture(depth, opacity),
        "opacity": pictures.opacity_picture(opacity),
    }
    labels = {"pred": f"predicted: {score.psnr:.2f} dB, SSIM {score.ssim:.3f}"}
    shown = [(labels.get(kind, kind), kinds[kind]) for kind in ("pred", "true", "error", "depth")]
    return {**kinds, "sheet": pictures.contact_sheet(shown)}
