"""Start a run from the parameters of another one (`--init-from RUN`).

What fits by name and shape is taken: the field (its average, where the run has one), networks and grid of the sampler,
corrections of poses and exposures. Moments of the optimiser, the miner and remembered errors start anew. Where both
runs have the same recipe, the field keeps the shape of the earlier one: that of a hash grid follows the size of the
images, and a run at another `--downscale` would fit nowhere.

The checkpoint is recorded in config.json (`config.InitFrom`), so that a resumed or replayed run starts from the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from raymine import checkpoint, recipes
from raymine.checkpoint import Checkpoint
from raymine.config import InitFrom, RunConfig, allowing
from raymine.contracts import FieldConfig, Scene
from raymine.errors import ConfigError, RunError, SceneError, option
from raymine.files import expanded
from raymine.rundir import RunDir
from raymine.scenes import load_scene, scene_digest
from raymine.step import TrainConfig, TrainState

from ..request import TrainRequest
from .restore import name_some

_PARTS = ("field", "sampler", "poses", "exposure")
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
    path = checkpoint.path_of(Path(init.run) / "checkpoints", init.step)
    if not path.exists() or _digest(path) != init.digest:
        raise RunError(
            f"This run began with step {init.step} of {init.run}, which is no longer there, and has no checkpoint yet.",
            hint=f"Train anew with another {option('out')}.",
        )
    return checkpoint.load(path)


def take(state: TrainState, start: Start) -> Taken:
    """Copy what fits from the run that `start` names into a fresh state. `ConfigError` if nothing of the field does."""
    found = open_start(start)
    own, theirs = state.tensors(), found.tensors
    taken, left = [], []
    for name in sorted({name for name in (*own, *theirs) if name.partition(".")[0] in _PARTS}):
        source = theirs.get(name.replace("field.", "average.", 1) if name.startswith("field.") else name)
        source = theirs.get(name) if source is None else source
        if name not in own:
            left.append(f"{name} (this run has none)")
        elif source is None:
            left.append(f"{name} (that run has none)")
        elif own[name].shape != source.shape or own[name].dtype != source.dtype:
            left.append(f"{name} ({list(source.shape)}, here {list(own[name].shape)})")
        elif source.is_floating_point() and not torch.isfinite(source).all():
            left.append(f"{name} (not finite)")
        else:
            own[name].copy_(source)
            taken.append(name)
    if not any(name.startswith("field.") for name in taken):
        kinds = type(start.field).__name__, type(state.config.field).__name__
        fault = f"nothing of its field fits this model: {name_some(left)}"
        if kinds[0] != kinds[1]:
            fault = f"its field is {kinds[0]}, and that of this run is {kinds[1]}"
        raise ConfigError(
            f"{option(_OPTION, start.init.run)}: {fault}.",
            hint=f"Use the recipe of that run, {option('recipe', start.recipe)}, or start without it.",
        )
    _conclude(state, found, set(taken))
    return Taken(tuple(taken), tuple(left))


def _conclude(state: TrainState, found: Checkpoint, taken: set[str]) -> None:
    """Numbers of parts that were taken as a whole; what depends on tensors; the average, which starts at the field."""
    for name in _PARTS:
        part = state.parts.get(name)
        if part is None:
            continue
        numbers = part.scalars()
        whole = all(f"{name}.{tensor}" in taken for tensor in part.tensors())
        if whole and all(f"{name}.{key}" in found.scalars for key in numbers):
            part.restored({key: found.scalars[f"{name}.{key}"] for key in numbers})
        else:
            part.restored(numbers)
    average = state.parts.get("average")
    if average is not None:
        field = state.parts["field"].tensors()
        for name, value in average.tensors().items():
            value.copy_(field[name])
    state.restore_count += 1
