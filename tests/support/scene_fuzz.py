"""What a damaged scene may do: be refused with a sentence, or be read rightly. Nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from raymine.contracts import Scene
from raymine.errors import SceneError
from raymine.files import UnreadableFile
from raymine.scenes import Problem, check_scene, load_scene
from raymine.scenes.bank.decode import decode
from raymine.scenes.bank.sources import Source, sources_of
from support.mutate import replace_file, restore_file
from support.scene_writers import Capture, ring

REPLACED = 0.06
"""Share of the cases in which a file is replaced by a pipe, a folder, a link and so on."""


def tiny_capture(suffix: str = ".png") -> Capture:
    """Four cameras with images of 12x8 pixels."""
    capture = ring(4, centre=(0.0, 0.0, 0.0))
    capture.width, capture.height, capture.focal = 12, 8, 10.0
    capture.names = [name.replace(".png", suffix) for name in capture.names]
    return capture


def verdict(root: Path) -> str:
    """What becomes of a scene: "refused" by `load_scene`, "unreadable" pixels, or "fine".

    AssertionError if `check_scene` and `load_scene` disagree, or if what was read cannot be trained on.
    """
    errors = [p for p in check_scene(root) if p.severity == "error"]
    scene, refusal = _loaded(root)
    if scene is None:
        assert errors, f"check finds no error, and load refuses: {refusal}"
        assert str(root) in refusal
        return "refused"
    _assert_usable(scene)
    faults = [fault for source in sources_of(scene, range(len(scene.frames))) if (fault := _fault(source))]
    assert bool(faults) == bool(errors), f"packing finds {faults}, check finds {_texts(errors)}"
    return "unreadable" if faults else "fine"


def _loaded(root: Path) -> tuple[Scene | None, str]:
    """The scene, or None and the message of its error."""
    try:
        return load_scene(root), ""
    except SceneError as error:
        return None, error.message


def _assert_usable(scene: Scene) -> None:
    bounds = scene.bounds
    assert scene.of_split("train")
    assert all(np.isfinite(frame.pose).all() for frame in scene.frames)
    assert np.isfinite(scene.normalisation).all()
    assert np.isfinite([bounds.near, bounds.far, *bounds.low, *bounds.high]).all()
    assert 0 < bounds.near < bounds.far
    for camera in scene.cameras:
        assert min(camera.fx, camera.fy) > 0
        assert min(camera.width, camera.height) >= 1
        assert np.isfinite([camera.fx, camera.fy, camera.cx, camera.cy, *camera.distortion]).all()


def _fault(source: Source) -> str | None:
    try:
        decode(source)
    except UnreadableFile as error:
        return error.what
    return None


def _texts(problems: list[Problem]) -> list[str]:
    return [str(p) for p in problems]


def fuzz(root: Path, files: list[Path], cases: range, mutate: Callable[[Path, bytes, Random], bytes]) -> set[str]:
    """Damage one of `files` in each case, look at the scene, and restore the file. The verdicts that occurred.

    A failure names the case, which alone decides the damage. `mutate` makes the new bytes of a file from the old ones.
    """
    originals = {path: path.read_bytes() for path in files}
    assert verdict(root) == "fine", "the scene must be good before it is damaged"
    seen = set()
    for case in cases:
        random = Random(f"{files[0].name} {case}")
        path = random.choice(files)
        if random.random() < REPLACED:
            done = f"{path.name} replaced: {replace_file(path, random)}"
        else:
            path.write_bytes(mutate(path, originals[path], random))
            done = f"{path.name} changed"
        try:
            seen.add(verdict(root))
        except Exception as error:
            error.add_note(f"Case {case}: {done}")
            raise
        restore_file(path, originals[path])
    return seen
