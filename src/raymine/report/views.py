"""Test views of a run for its report: the photo, the prediction and the error, small enough to be embedded.

Pictures come from `eval/images`. If there are none, a few views are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from raymine.errors import RaymineError
from raymine.evaluate.metrics import psnr
from raymine.evaluate.views import true_image
from raymine.experiment import LoadedRun, choose_frames, frames_by_name
from raymine.export import render_view
from raymine.pages.html import jpeg
from raymine.pictures import error_picture
from raymine.scenes.bank import open_bank

from .record import RunRecord

WIDEST = 560
"""Pixels of the longer side of an embedded picture: sharp on a phone and beside another one on a screen."""

SHOWN = 4
RENDERED = 2
"""Views that are rendered for a run without an evaluation. On a CPU each may take some seconds."""


@dataclass(frozen=True)
class ShownView:
    """A test view as JPEG: the photo, the prediction, their difference. why: why it was chosen."""

    name: str
    psnr: float | None
    why: str
    true: bytes
    predicted: bytes
    error: bytes


@dataclass(frozen=True)
class ShownViews:
    """The views of a run. note: where they come from, or why there are none."""

    views: tuple[ShownView, ...]
    note: str


def views_of(
    run: RunRecord, load: Callable[[], LoadedRun], *, names: Sequence[str] = (), render: bool = True
) -> ShownViews:
    """A few test views of a run: those in `names`, if it has them.

    load: opens the run. render: whether to render views if `raymine eval` has written no pictures.
    """
    found = _of_evaluation(run, names)
    if found:
        return ShownViews(tuple(found), "From the pictures of raymine eval.")
    again = f"For scores and pictures of all test views: raymine eval {run.path}"
    if not render:
        return ShownViews((), f"There are no pictures of test views. {again}")
    try:
        return ShownViews(tuple(_rendered(load(), names)), f"Rendered for this report. {again}")
    except RaymineError as error:
        return ShownViews((), f"No test view could be rendered: {error.message} {again}")


def _of_evaluation(run: RunRecord, names: Sequence[str]) -> list[ShownView]:
    """Views with pictures in `eval/images`: those in `names`, else the worst, the best, and some between them."""
    if run.scores is None:
        return []
    folder = run.path / "eval" / "images"
    there = [view for view in run.scores.views if _paths(folder, view[0])]
    ranked = sorted(there, key=lambda view: (view[1] is not None, view[1]))
    count = min(SHOWN, len(ranked))
    picks = [round(i * (len(ranked) - 1) / max(1, count - 1)) for i in range(count)]
    picks = [i for name in names for i, view in enumerate(ranked) if view[0] == name] or picks
    shown = []
    for pick in picks:
        name, score, _ = ranked[pick]
        why = "the worst" if pick == 0 else "the best" if pick == len(ranked) - 1 else "between worst and best"
        try:
            pictures = [_scaled(path) for path in _paths(folder, name)]
        except OSError:
            # A picture that is damaged, or that was removed meanwhile.
            continue
        shown.append(ShownView(name, score, why if len(ranked) > 1 else "", *pictures))
    return shown


def _paths(folder: Path, name: str) -> list[Path]:
    """The pictures true, predicted and error of a view; empty if one of them is missing."""
    paths = [folder / f"{name}-{kind}.png" for kind in ("true", "pred", "error")]
    # A name from a file of another origin could lead out of the folder.
    return paths if Path(name).name == name and all(path.is_file() for path in paths) else []


def _scaled(path: Path) -> bytes:
    with Image.open(path) as picture:
        return jpeg(np.asarray(picture.convert("RGB")), WIDEST)


def _rendered(loaded: LoadedRun, names: Sequence[str]) -> list[ShownView]:
    scene = loaded.scene
    frames = tuple(frames_by_name(scene, names).values()) or choose_frames(scene, "test", RENDERED)
    background = scene.background or (0.0, 0.0, 0.0)
    shown = []
    with open_bank(scene, frames) as images:
        for index, number in enumerate(frames):
            frame = scene.frames[number]
            truth, mask = true_image(images, index, torch.tensor(background, dtype=torch.float32))
            view = render_view(
                loaded.renderer,
                scene.cameras[frame.camera],
                frame.pose,
                scene.bounds,
                background=background,
                time=frame.time,
                device=loaded.device,
            )
            true, predicted = truth.numpy(), view.colour
            score = psnr(torch.from_numpy(predicted), truth, mask)
            pictures = (true, predicted, error_picture(predicted, true))
            shown.append(ShownView(frame.image.stem, score, "", *(jpeg(each, WIDEST) for each in pictures)))
    return shown
