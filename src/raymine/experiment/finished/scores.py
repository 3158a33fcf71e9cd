"""Evaluate a loaded run on the images of one split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from raymine.contracts import ImageSource, Scene, Split
from raymine.errors import ConfigError, option
from raymine.evaluate import Evaluation, FitConfig, Lpips, PictureChoice, evaluate_views
from raymine.evaluate.corrections import corrections_of
from raymine.evaluate.files import unique_names
from raymine.evaluate.fit import fitted_scores
from raymine.evaluate.protocol import protocol_of
from raymine.quantities import spread
from raymine.rays import CameraRig

from .load import LoadedRun


def choose_frames(scene: Scene, split: Split, views: int | None) -> tuple[int, ...]:
    """Indices of the frames of a split, or of `views` evenly spread ones; `ConfigError` if the split is empty."""
    frames = scene.of_split(split)
    if not frames:
        counts = {name: len(scene.of_split(name)) for name in ("train", "val", "test")}
        there = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise ConfigError(
            f"{option('split', split)}: the scene {scene.root} has no such images.", hint=f"It has: {there}."
        )
    if views is not None and views < 1:
        raise ConfigError(f"{option('views')} must be at least 1, got {views}.")
    return frames if views is None else tuple(frames[i] for i in spread(len(frames), views))


def frames_by_name(scene: Scene, names: Sequence[str]) -> dict[str, int]:
    """The frame of each view of an evaluation of the test split, whose file has `names`."""
    frames = choose_frames(scene, "test", len(names)) if names and scene.of_split("test") else ()
    found = dict(zip(unique_names([scene.frames[i].image.stem for i in frames]), frames, strict=True))
    return {name: found[name] for name in names if name in found}


def score_frames(
    loaded: LoadedRun,
    frames: Sequence[int],
    images: ImageSource,
    *,
    out: Path | None = None,
    pictures: PictureChoice = "all",
    progress: Callable[[int, int], None] | None = None,
    fit: FitConfig | None = None,
    fit_progress: Callable[[int, int], None] | None = None,
    lpips: Sequence[Lpips] = (),
) -> Evaluation:
    """Render frames of the run's scene and compare them with `images`, which holds these frames in the same order.

    out: a folder for metrics.json and pictures, which replace those of an earlier evaluation. pictures: of every view
    (`all`), of the first four (`few`) or of none. progress: called with (done, total) after each view. fit: also score
    the views after their poses, exposures or both were fitted to `images` (`evaluate.fit`); `Evaluation.fitted` and
    metrics.json then have these scores. Pictures are those without fitting. fit_progress: as `progress`, of the fits.
    lpips: networks whose distances are computed too. All `frames` must be of one split.

    Images that the run was trained on are rendered at their refined poses and with their exposures, where the run fits
    these, and the protocol says so. All others have their given poses.
    """
    scene = loaded.scene
    known = corrections_of(loaded.state, scene, frames, loaded.trained)
    names = [scene.frames[i].image.stem for i in frames]
    fitted = None
    if fit is not None:
        fitted = fitted_scores(
            loaded.state,
            loaded.renderer,
            scene,
            frames,
            images,
            fit,
            trained=loaded.trained,
            names=names,
            progress=fit_progress,
            lpips=lpips,
        )
    return evaluate_views(
        loaded.renderer,
        CameraRig(known.scene(scene), frames, loaded.device),
        images,
        background=scene.background or (0.0, 0.0, 0.0),
        names=names,
        out_dir=out,
        pictures=pictures,
        progress=progress,
        fitted=fitted,
        lpips=lpips,
        protocol=protocol_of(scene, scene.frames[frames[0]].split, len(frames), known.words()) if frames else None,
        renderers=known.renderers(loaded.renderer),
        step=loaded.step,
    )
