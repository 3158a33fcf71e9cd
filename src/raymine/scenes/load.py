"""Loads a `Scene` from a path: parse, inspect, fit cameras, split, normalise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raymine.cameras import apply_similarity, pose_fault
from raymine.contracts import Camera, Frame, Scene
from raymine.errors import ConfigError, option
from raymine.files import expanded

from .fit import Fitted, fit_cameras
from .images import shows_something, uses_alpha
from .inspection import inspect_cameras, inspect_times
from .normalise import normalise, report_no_parallax
from .parsed import Parsed, RawFrame
from .problems import Problem, refuse
from .readers.detect import parse_scene
from .split import assign_splits, holdout_interval
from .unused import unused_content

BUILTIN = "builtin"
_ALPHA_PROBES = 3


@dataclass(frozen=True)
class Assembly:
    """Result of `assemble`. scene: made of the usable frames; None if there are none. problems: everything found.

    unused: phrases for what the folder holds and raymine does not use.
    """

    parsed: Parsed
    scene: Scene | None
    fitted: tuple[Fitted, ...]
    unused: tuple[str, ...] = ()

    @property
    def problems(self) -> list[Problem]:
        return self.parsed.problems


def load_scene(path: str | Path, *, downscale: int = 1, split: str | None = None) -> Scene:
    """Reads and normalises a scene of any known format. At most a few images are decoded.

    path: a folder, a transforms file, or the text "builtin" for the built-in scene of raymine (a folder of that name is
    "./builtin", or a `Path`). downscale: integer divisor of image sizes. split: None or "auto" uses the split of the
    files, or else holds out every 8th image; "every:N" holds out every Nth image; "all" trains on everything.

    SceneError if the scene cannot be read. Problems that do not prevent training are in `Scene.warnings`, and the
    choices that were made are in `Scene.decisions`.
    """
    folder = resolve_path(path)
    assembly = assemble(folder, downscale, split)
    if any(p.severity == "error" for p in assembly.problems) or assembly.scene is None:
        raise refuse(folder, assembly.problems)
    return assembly.scene


def resolve_path(path: str | Path) -> Path:
    """The path that the user means. The text "builtin" is the built-in scene, which is rendered on first use.

    It means that wherever it is read, also from a run's config: what the working folder holds plays no part.
    """
    if path == BUILTIN:
        from .builtin import builtin_scene

        return Path(builtin_scene())
    return expanded(path)


def assemble(path: Path, downscale: int = 1, split: str | None = None) -> Assembly:
    """As `load_scene`, but returns problems instead of raising SceneError. ConfigError for invalid arguments."""
    if downscale < 1:
        raise ConfigError(f"{option('downscale')} must be a whole number of at least 1, got {downscale}.")
    interval = holdout_interval(split)
    parsed = parse_scene(path, downscale)
    frames = _sound_frames(parsed)
    fitted = inspect_cameras(parsed, fit_cameras(parsed, frames, downscale))
    _require_pixels(fitted, downscale, downscale // parsed.premade)
    inspect_times(parsed, [f.frame for f in fitted])
    if not fitted:
        if not any(p.severity == "error" for p in parsed.problems):
            parsed.error(parsed.source, "holds no usable frame.", "Add frames with images and poses.", "no-frames")
        return Assembly(parsed, None, ())
    unused = unused_content(parsed)
    if unused:
        parsed.decisions.append(f"Not used: {'; '.join(unused)}.")
    return Assembly(parsed, _make_scene(parsed, fitted, downscale, interval), tuple(fitted), unused)


def _require_pixels(fitted: Sequence[Fitted], downscale: int, divide: int) -> None:
    """Raise `ConfigError` if no image has a pixel left at this size."""
    width, height = max((item.header.shown for item in fitted), key=min, default=(divide, divide))
    if divide > min(width, height):
        raise ConfigError(
            f"{option('downscale', downscale)} leaves nothing of images of {width}x{height} pixels.",
            hint="Trained images should have at least some hundred pixels a side.",
        )


def _sound_frames(parsed: Parsed) -> list[RawFrame]:
    """The frames whose pose is a rigid motion. The others are reported."""
    sound = []
    for frame in parsed.frames:
        fault = pose_fault(frame.pose)
        if fault is None:
            sound.append(frame)
        else:
            parsed.error(frame.where, f"the pose {fault}.", "Correct the pose or remove the frame.", "pose")
    return sound


def _make_scene(parsed: Parsed, fitted: Sequence[Fitted], downscale: int, interval: int | None) -> Scene:
    _report_blank(parsed, fitted)
    transparent = _transparent(fitted)
    normalised = normalise(parsed, fitted, transparent)
    splits, split_sentence = assign_splits([f.frame for f in fitted], parsed.own_split, interval)
    if "train" not in splits:
        parsed.error(parsed.source, "no usable frame is for training.", "Check the train split.", "split")
    report_no_parallax(parsed, [item for item, split in zip(fitted, splits, strict=True) if split == "train"])
    cameras: dict[Camera, int] = {}
    poses = apply_similarity(normalised.matrix, np.stack([f.pose for f in fitted]))
    frames = []
    for item, pose, split in zip(fitted, poses, splits, strict=True):
        assert item.frame.image is not None
        camera = cameras.setdefault(item.camera, len(cameras))
        raw = item.frame
        frames.append(Frame(item.frame.image, camera, pose, split, raw.time, raw.mask, depth=raw.depth))
    return Scene(
        root=parsed.root,
        format=parsed.format,
        cameras=tuple(cameras),
        frames=tuple(frames),
        bounds=normalised.bounds,
        background=(1.0, 1.0, 1.0) if transparent else None,
        normalisation=normalised.matrix,
        downscale=downscale,
        decisions=(
            *parsed.decisions,
            _size_sentence(cameras, downscale // parsed.premade),
            split_sentence,
            *_time_sentence(frames),
            *_depth_sentence(frames),
            *normalised.sentences,
        ),
        warnings=tuple(f"{p.file}: {p.what}" for p in parsed.problems if p.severity == "warning"),
        depth_unit=parsed.depth_unit,
        divided=downscale // parsed.premade,
    )


def _size_sentence(cameras: dict[Camera, int], divided: int) -> str:
    sizes = sorted({(c.width, c.height) for c in cameras})
    models = ", ".join(sorted({c.model for c in cameras}))
    size = f"{sizes[0][0]}x{sizes[0][1]}" if len(sizes) == 1 else f"{len(sizes)} sizes"
    by = "" if divided == 1 else f" after dividing by {divided}"
    return f"Cameras: {len(cameras)} ({models}), images {size}{by}."


def _time_sentence(frames: Sequence[Frame]) -> tuple[str, ...]:
    times = [f.time for f in frames if f.time is not None]
    return (f"Time: the scene moves; frames have times from {min(times):g} to {max(times):g}.",) if times else ()


def _depth_sentence(frames: Sequence[Frame]) -> tuple[str, ...]:
    count = sum(f.depth is not None for f in frames)
    told = f"Depth: {count} of {len(frames)} frames have a depth map, which {option('depth_loss')} trains with."
    return (told,) if count else ()


def _report_blank(parsed: Parsed, fitted: Sequence[Fitted]) -> None:
    """Warns if no image shows anything: there is nothing to learn. It decodes images until one shows something."""
    images = [(f.frame.name, f.frame.image) for f in fitted if f.frame.image is not None]
    if any(shows_something(image) for _, image in images):
        return
    what = "has one colour or is transparent everywhere, and no other image shows anything."
    fix = "There is nothing to learn from such images: check how they were made or exported."
    names = tuple(name for name, _ in images)
    parsed.problems.append(Problem(names[0], what, fix, "warning", "blank-image", names))


def _transparent(fitted: Sequence[Fitted]) -> bool:
    """Whether images have transparent pixels. It decodes up to three of the images with an alpha channel."""
    with_alpha = [f.frame.image for f in fitted if f.header.alpha and f.frame.image is not None]
    probes = with_alpha[:: max(1, len(with_alpha) // _ALPHA_PROBES)][:_ALPHA_PROBES]
    return any(uses_alpha(image) for image in probes)
