"""Start a run from the parameters of another one (`--init-from RUN`).

What fits by name and shape is taken: the field (its average, where the run has one), networks and grid of the sampler.
A part with numbers beside its tensors, such as a grid of voxels with its resolution, is taken as a whole or not at all:
its tensors mean nothing without the others. Corrections of poses and exposures are taken image by image, by the names
of the images. Moments of the optimiser, the miner and remembered errors start anew. Where both runs have the same
recipe, the field keeps the shape of the earlier one: that of a hash grid follows the size of the images, and a run at
another `--downscale` would fit nowhere.

The checkpoint is recorded in config.json (`config.InitFrom`), so that a resumed or replayed run starts from the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raymine import checkpoint, recipes
from raymine.checkpoint import Checkpoint
from raymine.config import InitFrom, RunConfig, allowing
from raymine.contracts import FieldConfig, Part, Scene
from raymine.errors import ConfigError, RunError, SceneError, option
from raymine.files import expanded
from raymine.quantities import listing
from raymine.run_files import CHECKPOINTS
from raymine.rundir import RunDir
from raymine.scenes import load_scene, scene_digest
from raymine.step import TrainConfig, TrainState

from ..inputs import recorded_images
from ..request import TrainRequest

_PARTS = ("field", "sampler")
_OF_IMAGES = ("poses", "exposure")
_SAME_WORLD = 1e-5
_OPTION = "init_from"


@dataclass(frozen=True)
class Start:
    """The run that a new one starts from. recipe, field: of that run. notes, warnings: sentences for the user."""

    init: InitFrom
    recipe: str
    field: FieldConfig
    found: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def adapted(self, train: TrainConfig, recipe: str, own_field: bool) -> TrainConfig:
        """The config with the field of the earlier run, if the recipe is the same and the user asked for no other."""
        same = recipe == self.recipe != recipes.CUSTOM and type(self.field) is type(train.field)
        return replace(train, field=self.field) if same and not own_field else train


@dataclass(frozen=True)
class Taken:
    """Names of tensors that were taken from another run, and of those that were not, with the reason."""

    taken: tuple[str, ...]
    left: tuple[str, ...]

    def sentence(self, init: InitFrom) -> str:
        told = f"started from step {init.step} of {init.run}, with {len(self.taken)} tensors of it"
        return f"{told}; not taken: {', '.join(self.left)}" if self.left else told


def find_start(request: TrainRequest, scene: Scene, stored: RunConfig | None) -> Start | None:
    """The run that `request` starts from, or None. A resumed run keeps what it recorded: the other may have gone on."""
    if request.init_from is None:
        return None
    if isinstance(request.init_from, InitFrom):
        # A run is repeated: its recipe has the field that it was trained with.
        assert isinstance(request.recipe, TrainConfig)
        return Start(request.init_from, request.recipe_name, request.recipe.field)
    folder = expanded(request.init_from).resolve()
    if stored is not None and stored.init_from is not None and stored.init_from.run == str(folder):
        return Start(stored.init_from, stored.recipe, stored.train.field)
    asked = option(_OPTION, request.init_from)
    if request.out is not None and expanded(request.out).resolve() == folder:
        raise ConfigError(f"{asked} is the folder of this run.", hint=f"To continue it: {option('resume', True)}.")
    run = RunDir.open(folder)
    with allowing(request.packages):
        config = run.read_config()
    latest = checkpoint.load_latest(run.checkpoints)
    if latest is None:
        raise RunError(f"{asked}: that run has no checkpoint yet.", hint="Wait until it has one, or name another run.")
    warnings = [f"{problem} Using step {latest.checkpoint.step}." for problem in latest.problems]
    warnings += _world_warnings(request, folder, scene, run, config)
    found = latest.checkpoint
    init = InitFrom(str(folder), found.step, _digest(found.path))
    notes = (f"Start: the parameters of {folder.name} at step {found.step} (recipe {config.recipe}).",)
    return Start(init, config.recipe, config.train.field, found, notes, tuple(warnings))


def _world_warnings(request: TrainRequest, folder: Path, scene: Scene, run: RunDir, config: RunConfig) -> list[str]:
    """Warnings about another scene in the same world. `ConfigError` if its world is another one."""
    digest = run.read_manifest().scene_digest
    if scene.downscale == config.downscale:
        same = scene
    else:
        same = load_scene(request.scene, downscale=config.downscale)
    if scene_digest(same) == digest:
        return []
    asked = option(_OPTION, folder)
    try:
        theirs = load_scene(config.scene, downscale=config.downscale)
    except SceneError as error:
        raise ConfigError(
            f"{asked}: that run was trained on another scene, {config.scene}, which cannot be read to compare "
            f"the two: {error.message}",
            hint="Put that scene back, or start from a run of this scene.",
        ) from error
    if not _same_world(scene, theirs):
        raise ConfigError(
            f"{asked}: that run was trained on {config.scene}, whose world is another one: centre, scale or bounds "
            "differ, so its field would lie elsewhere in this scene.",
            hint=f"Start from a run of this scene with the same images and poses; {option('downscale')} may differ.",
        )
    return [f"{folder} was trained on another scene ({config.scene}) in a world of the same scale."]


def _same_world(one: Scene, other: Scene) -> bool:
    box, other_box = (np.array([scene.bounds.low, scene.bounds.high]) for scene in (one, other))
    return (
        one.bounds.unbounded == other.bounds.unbounded
        and np.allclose(one.normalisation, other.normalisation, atol=_SAME_WORLD)
        and np.allclose(box, other_box, atol=_SAME_WORLD)
    )


def _digest(path: Path) -> str:
    """SHA-256 of the JSON of a checkpoint, which holds that of its tensors."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def open_start(start: Start) -> Checkpoint:
    """The checkpoint to start from; `RunError` if it is no longer what it was when the run began."""
    if start.found is not None:
        return start.found
    init = start.init
    path = checkpoint.path_of(Path(init.run) / CHECKPOINTS, init.step)
    if not path.exists() or _digest(path) != init.digest:
        raise RunError(
            f"This run began with step {init.step} of {init.run}, which is no longer there, and has no checkpoint yet.",
            hint=f"Train anew with another {option('out')}.",
        )
    return checkpoint.load(path)


def take(state: TrainState, start: Start, images: Sequence[str]) -> Taken:
    """Copy what fits from the run that `start` names into a fresh state. `ConfigError` if nothing of the field does.

    images: the names of the training images of the state, in order.
    """
    found = open_start(start)
    taken: list[str] = []
    left: list[str] = []
    for name in _PARTS:
        part = state.parts[name]
        fitting, misfits = _compare(name, part, found)
        if part.scalars() and fitting:
            misfits += _take_whole(name, part, found, fitting, misfits)
            fitting = {} if misfits else fitting
        else:
            _copy(part, fitting)
            part.restored(part.scalars())
        taken += [f"{name}.{key}" for key in fitting]
        left += misfits
    if not any(name.startswith("field.") for name in taken):
        kinds = type(start.field).__name__, type(state.config.field).__name__
        fault = f"nothing of its field fits this model: {listing(left)}"
        if kinds[0] != kinds[1]:
            fault = f"its field is {kinds[0]}, and that of this run is {kinds[1]}"
        raise ConfigError(
            f"{option(_OPTION, start.init.run)}: {fault}.",
            hint=f"Use the recipe of that run, {option('recipe', start.recipe)}, or start without it.",
        )
    theirs = recorded_images(Path(start.init.run))
    for name in _OF_IMAGES:
        done, not_done = _take_images(name, state.parts.get(name), found, images, theirs)
        taken += done
        left += not_done
    average = state.parts.get("average")
    if average is not None:
        own = state.parts["field"].tensors()
        for name, value in average.tensors().items():
            value.copy_(own[name])
    if state.average is not None:
        state.average.restored(state.parts["field"].scalars())
    state.restore_count += 1
    return Taken(tuple(taken), tuple(left))


def _compare(part: str, own: Part, found: Checkpoint) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a part that fit, by their names in the part, and what does not fit, with the reason."""
    tensors, theirs = own.tensors(), found.tensors
    fitting, misfits = {}, []
    names = {name.partition(".")[2] for name in theirs if name.startswith(f"{part}.")}
    for name in sorted({*tensors, *names}):
        source = theirs.get(f"average.{name}") if part == "field" else None
        source = theirs.get(f"{part}.{name}") if source is None else source
        if name not in tensors:
            misfits.append(f"{part}.{name} (this run has none)")
        elif source is None:
            misfits.append(f"{part}.{name} (that run has none)")
        elif tensors[name].shape != source.shape or tensors[name].dtype != source.dtype:
            misfits.append(f"{part}.{name} ({list(source.shape)}, here {list(tensors[name].shape)})")
        elif source.is_floating_point() and not torch.isfinite(source).all():
            misfits.append(f"{part}.{name} (not finite)")
        else:
            fitting[name] = source
    return fitting, misfits


def _take_whole(
    name: str, part: Part, found: Checkpoint, fitting: dict[str, Tensor], misfits: Sequence[str]
) -> list[str]:
    """Take a part with its numbers, or nothing of it: then what is left, with the reason."""
    own = part.scalars()
    lacking = [f"{name}.{key} (that run has none)" for key in own if f"{name}.{key}" not in found.scalars]
    if misfits or lacking:
        reason = (*misfits, *lacking)[0].partition(" ")[0]
        return lacking + [f"{name}.{key} (nothing without {reason})" for key in fitting]
    before = {key: value.clone() for key, value in part.tensors().items()}
    _copy(part, fitting)
    try:
        part.restored({key: found.scalars[f"{name}.{key}"] for key in own})
    except ConfigError as error:
        _copy(part, before)
        part.restored(own)
        return [f"{name} ({error.message.rstrip('.')})"]
    return []


def _copy(part: Part, values: dict[str, Tensor]) -> None:
    own = part.tensors()
    for name, value in values.items():
        own[name].copy_(value)


def _take_images(
    name: str, part: Part | None, found: Checkpoint, images: Sequence[str], theirs: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Take the rows of images that both runs have, by name: what was taken, and what not with the reason.

    Image k of one run is another image of the other where they hold out others.
    """
    own = {} if part is None else {f"{name}.{key}": value for key, value in part.tensors().items()}
    taken, left = [], []
    for key in sorted({key for key in (*own, *found.tensors) if key.startswith(f"{name}.")}):
        source = found.tensors.get(key)
        if key not in own:
            left.append(f"{key} (this run has none)")
        elif source is None:
            left.append(f"{key} (that run has none)")
        elif own[key].shape[1:] != source.shape[1:] or len(theirs) != len(source) or len(images) != len(own[key]):
            left.append(f"{key} (which image each row of it belongs to is not known)")
        elif not torch.isfinite(source).all():
            left.append(f"{key} (not finite)")
        else:
            rows = _rows_by_name(images, theirs)
            for row, other in rows.items():
                own[key][row].copy_(source[other])
            if rows:
                taken.append(key)
            if len(rows) < len(images):
                left.append(f"{key} of {len(images) - len(rows)} of {len(images)} images (not trained on there)")
    return taken, left


def _rows_by_name(images: Sequence[str], theirs: Sequence[str]) -> dict[int, int]:
    """The row of the image of the same name among `theirs`, for each of `images` that is there.

    Where stems are unique they count alone: smaller copies may lie in another folder, or have another suffix.
    """
    own, other = ([Path(image).stem for image in names] for names in (images, theirs))
    if len({*own}) < len(own) or len({*other}) < len(other):
        own, other = list(images), list(theirs)
    place = {image: row for row, image in enumerate(other)}
    return {row: place[image] for row, image in enumerate(own) if image in place}
