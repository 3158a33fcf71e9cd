"""The built-in scene: a procedural still life, ray-traced by raymine and cached as a folder in Blender format.

It needs no data and no network. It is a real test: it has textures, view-dependent reflections (a glossy ball and a
metal knot), thin wires and legs, an arch, soft shadows, and empty space around it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from raymine.errors import ConfigError
from raymine.files import UnreadableFile, read_json, write_json
from raymine.machine import cores
from raymine.scenes._cache import REMEDY, cache_path, locked, storage_error, writable_folder

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class BuiltinConfig:
    """Options of the built-in scene. size: width and height of the images in pixels. The others: numbers of views."""

    size: int = 200
    train_views: int = 60
    test_views: int = 10

    def __post_init__(self) -> None:
        for name, low, high in (("size", 4, 4096), ("train_views", 1, 10_000), ("test_views", 1, 10_000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(
                    f"`{name}` of the built-in scene must be between {low} and {high}, got {value}.",
                    hint=f"Choose a `{name}` in that range; the default is {getattr(type(self), name)}.",
                )


def builtin_scene(
    cache_dir: Path | None = None,
    *,
    size: int = 200,
    train_views: int = 60,
    test_views: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The folder of the built-in scene. It is rendered on first use (a few seconds at 200 pixels) and then cached.

    The folder is in Blender format: `transforms_train.json`, `transforms_test.json` and square RGBA images with
    straight alpha. World z is up, all content lies within 1.1 units of the z axis, and cameras are 4 units from the
    origin. cache_dir: default `$RAYMINE_CACHE` or `~/.cache/raymine`. progress: called with (views done, views in
    total) while rendering. Several processes may call this at once; one of them renders. The images are deterministic.
    """
    config = BuiltinConfig(size, train_views, test_views)
    root = cache_path() if cache_dir is None else Path(cache_dir).absolute()
    folder = root / "builtin" / _name_of(config)
    if _is_whole(folder):
        # A cache that cannot be written can still be used.
        return folder
    writable_folder(root)
    try:
        folder.parent.mkdir(exist_ok=True)
        with locked(folder.parent / f"{folder.name}.lock"):
            if not _is_whole(folder):
                _make(folder, config, progress)
    except OSError as error:
        raise storage_error(error, folder.parent, "the built-in scene") from error
    return folder


def _name_of(config: BuiltinConfig) -> str:
    from raymine.scenes.builtin.source import generator_digest

    key = json.dumps([generator_digest(), asdict(config)], sort_keys=True)
    return f"still-life-{config.size}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _is_whole(folder: Path) -> bool:
    """Whether every file of the scene exists and has the size with which it was written."""
    try:
        sizes = read_json(folder / _MANIFEST)["sizes"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (UnreadableFile, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _make(folder: Path, config: BuiltinConfig, progress: Callable[[int, int], None] | None) -> None:
    """Writes the scene to a temporary folder and renames it to `folder`, so that `folder` is never incomplete."""
    for stale in folder.parent.glob(f"{folder.name}.part-*"):
        # This process holds the lock, so the processes that made these folders are gone.
        shutil.rmtree(stale, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        _write_scene(part, config, progress)
        files = sorted(path for path in part.rglob("*") if path.is_file())
        sizes = {path.relative_to(part).as_posix(): path.stat().st_size for path in files}
        write_json(part / _MANIFEST, {"sizes": sizes}, "write the built-in scene", hint=REMEDY)
        part.chmod(0o755)
        if folder.exists():
            # The folder exists but is not complete: it was damaged.
            shutil.rmtree(folder)
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_scene(part: Path, config: BuiltinConfig, progress: Callable[[int, int], None] | None) -> None:
    from raymine.scenes.builtin.tracer import Tracer
    from raymine.scenes.builtin.views import FIELD_OF_VIEW, test_poses, train_poses

    focal = 0.5 * config.size / math.tan(0.5 * FIELD_OF_VIEW)
    views: list[tuple[str, np.ndarray]] = []
    for split, poses in (("train", train_poses(config.train_views)), ("test", test_poses(config.test_views))):
        (part / split).mkdir()
        named = [(f"{split}/view_{i:03d}", pose) for i, pose in enumerate(poses)]
        frames = [{"file_path": f"./{name}", "transform_matrix": pose.tolist()} for name, pose in named]
        document = {"camera_angle_x": FIELD_OF_VIEW, "frames": frames}
        write_json(part / f"transforms_{split}.json", document, "write the built-in scene", hint=REMEDY)
        views += named
    tracer = Tracer()

    def draw(view: tuple[str, np.ndarray]) -> None:
        name, pose = view
        Image.fromarray(tracer.render(pose, focal, config.size)).save(part / f"{name}.png")

    with ThreadPoolExecutor(cores()) as pool:
        for done, _ in enumerate(pool.map(draw, views), start=1):
            if progress is not None:
                progress(done, len(views))
