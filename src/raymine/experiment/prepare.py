"""Check a request and prepare a run: device, scene, config and data. Nothing is written to the run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from raymine import recipes
from raymine.config import Every, RunConfig, Schedule, allowing, replace_fields
from raymine.contracts import Scene
from raymine.errors import ConfigError, option
from raymine.files import expanded
from raymine.kernels import dispatch
from raymine.quantities import spread
from raymine.rays import CameraRig
from raymine.recipes.techniques import with_techniques
from raymine.scenes import load_scene, scene_digest
from raymine.scenes.bank import ImageBank, open_bank
from raymine.scenes.depth import DepthMaps, depth_digests
from raymine.scenes.load import BUILTIN
from raymine.scenes.names import frames_named, training_names
from raymine.step import TrainConfig, TrainData
from raymine.step.distributed.ranks import SOLO, Ranks
from raymine.step.precision import amp_problem

from .bank_budget import BankBudget, choose_bank_budget
from .memory import ImagePlace, place_images
from .request import TrainRequest
from .saved.start_from import Start, find_start
from .watchers.pose_watch import fitting_warnings

# Quick evaluations per run, outside the training clock.
_LOOKS = 4
# On a CPU each takes about a second, so a run of fewer seconds than this is evaluated at its end only.
_SHORT_ON_CPU = 20.0
# Steps per metrics row on CUDA. Between two rows the host does not wait for the device: 64 take about 30 ms on an H200.
_METRICS_ON_CUDA = 64

# Called with what is being loaded ("images ..." or KERNELS), how much of it is done, and how much there is.
KERNELS = "kernels"
LoadProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Prepared:
    """A checked request. digest: of the description of the scene. config: the complete config of the run.

    start: the run whose parameters it starts from; None for none. details: sentences for users who want to know more.
    bank_budget: the main memory that the images may take.
    """

    scene: Scene
    digest: str
    config: RunConfig
    device: torch.device
    start: Start | None = None
    details: tuple[str, ...] = ()
    bank_budget: BankBudget = field(default_factory=BankBudget)


@dataclass(frozen=True)
class LoadedData:
    """Cameras and pixels of some frames. Use it in a `with` block, which closes the images at its end.

    depths: `depth_digests` of the depth maps, if they were read.
    """

    train: TrainData
    bank: ImageBank
    depths: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> LoadedData:
        return self

    def __exit__(self, *_: object) -> None:
        self.bank.close()


def resolve_device(name: str) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "cuda:N"; `ConfigError` if this machine does not have it.

    A CUDA device with a number becomes the current one: Triton starts kernels on the current device, wherever their
    tensors are.
    """
    if name == "auto":
        name = "cpu" if dispatch.triton_problem() else "cuda"
    asked = option("device", name)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{asked}: no such device.", hint="Use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{asked}: raymine trains on cpu and cuda.", hint="Use auto, cpu or cuda.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda
            reason = f"built for CUDA {built}" if built else "a build without CUDA"
            raise ConfigError(
                f"{asked}: torch sees no CUDA device (torch {torch.__version__}, {reason}).",
                hint=f"Use {option('device', 'cpu')}, or a machine with an NVIDIA GPU and a CUDA build of torch.",
            )
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(f"{asked}: there are {torch.cuda.device_count()} CUDA devices, from cuda:0.")
        if device.index is not None:
            torch.cuda.set_device(device)
    return device


def prepare(request: TrainRequest, stored: RunConfig | None = None, *, ranks: Ranks = SOLO) -> Prepared:
    """Load the scene and build the config. If the request has no limit, that of `stored`, a resumed run, is used.

    ranks: the processes that train together.
    """
    device = resolve_device(request.device)
    if request.recipe != recipes.AUTO:
        recipes.find(request.recipe)
    scene = load_scene(request.scene, downscale=request.downscale)
    digest = scene_digest(scene)
    start = find_start(request, scene, stored)
    if start is not None:
        scene = _told(scene, start.notes, start.warnings)
    if request.recipe == recipes.AUTO:
        request, scene = _with_recipe(request, scene, stored, start)
    name = recipes.name_of(request.recipe)
    base, train = _configure(request, scene, device)
    if scene.reaching(train.levels) is not scene:
        scene = scene.reaching(train.levels)
        told = f"Bounds: {name} samples {scene.bounds.levels} levels, for a background that nothing was measured on."
        scene = _told(scene, (told,))
    if scene.moves and not getattr(train.field, "dynamic", False):
        static = f"Frames carry a time, but the recipe {name} is static: what moves will be blurred."
        scene = _told(scene, (), (static,))
    twin = recipes.twin_of(request.recipe, base, scene, device.type)
    asked = name
    if twin is not None and name in recipes.RECIPES:
        same = f"Recipe: on a {device.type.upper()} `{name}` is `{twin}`, and the run is recorded as that."
        scene = _told(scene, (same,))
        name = twin
    if start is not None:
        own_field = any(key.partition(".")[0] == "field" for key in request.overrides)
        adapted = start.adapted(train, name, own_field)
        if adapted != train:
            told = "Field: of the shape that it has in the run it starts from, not that of these images."
            train, scene = adapted, _told(scene, (told,))
    if stored is not None:
        train = _as_begun(train, stored.train, request)
    if stored is not None and stored.train == train and (asked == recipes.CUSTOM or asked == stored.recipe):
        # A recipe without a name of its own keeps the name that the run has, and so does a run of an earlier version
        # that was recorded under the name that was asked for.
        name = stored.recipe
    if asked == recipes.CUSTOM and request.recipe_name:
        name = request.recipe_name
    problem = amp_problem(train.amp, device)
    if problem:
        raise ConfigError(
            f"{option('amp', train.amp)}: {problem}.",
            hint=f"Use {option('amp', 'auto')}, or another type or device.",
        )
    left_out = frames_named(scene, request.leave_out)
    if left_out:
        names = training_names(scene)
        told = f"Left out: {len(left_out)} of {len(scene.of_split('train'))} training images: "
        scene = _told(scene, (told + ", ".join(names[i] for i in left_out) + ".",))
    trained, held_out = split_training(scene, request.hold_out, request.leave_out)
    if held_out:
        share = f"{len(held_out)} of {len(trained) + len(held_out)} training views"
        told = f"Held out: {share}; they are not trained on, and they select the best checkpoint."
        scene = _told(scene, (told,))
    scene = _told(scene, (), fitting_warnings(train, scene, trained))
    decided = stored is not None or request.replay is not None
    placed = _place_images(train, scene, trained, device, decided=decided, sharing=ranks.sharing(device))
    train = replace(train, image_memory=placed.memory)
    if placed.sentence:
        scene = _told(scene, (placed.sentence,))
    steps, max_seconds = _limits(request, train, stored)
    config = RunConfig(
        scene=scene_name(request.scene),
        recipe=name,
        train=train,
        downscale=request.downscale,
        seed=request.seed,
        hold_out=request.hold_out,
        leave_out=tuple(training_names(scene)[i] for i in left_out),
        device=device.type,
        steps=steps,
        max_seconds=max_seconds,
        schedule=_schedule(request, device, steps, max_seconds),
        init_from=None if start is None else start.init,
    )
    details = (placed.reason,) if placed.reason else ()
    budget = choose_bank_budget(request.bank_budget, train, scene.bounds, device)
    return Prepared(scene, digest, config, device, start, details, budget)


_DECIDED = {"poses": ("until", "final"), "sampler": ("start",)}
"""Settings for which runs of earlier versions had other values than recipes and flags give now."""


def _as_begun(train: TrainConfig, begun: TrainConfig, request: TrainRequest) -> TrainConfig:
    """The config of a resumed run, with what it decided when it began where the request does not say it."""
    if train.image_memory is None:
        train = replace(train, image_memory=begun.image_memory)
    for section, names in _DECIDED.items():
        own, theirs = getattr(train, section), getattr(begun, section)
        whole = request.overrides.get(section, {})
        if own is None or type(own) is not type(theirs) or not isinstance(whole, dict):
            continue
        kept = {
            name: getattr(theirs, name)
            for name in names
            if hasattr(theirs, name) and name not in whole and f"{section}.{name}" not in request.overrides
        }
        train = replace(train, **{section: replace(own, **kept)})
    return train


def _place_images(
    train: TrainConfig, scene: Scene, frames: Sequence[int], device: torch.device, *, decided: bool, sharing: int
) -> ImagePlace:
    cameras = [scene.cameras[scene.frames[i].camera] for i in frames]
    sizes = np.array([(camera.height, camera.width) for camera in cameras], np.int64)
    masked = any(scene.frames[i].mask is not None for i in frames)
    return place_images(train, sizes, masked, scene.bounds, device, decided=decided, sharing=sharing)


def _told(scene: Scene, notes: tuple[str, ...], warnings: tuple[str, ...] = ()) -> Scene:
    """The scene with more sentences for the user."""
    return replace(scene, decisions=(*scene.decisions, *notes), warnings=(*scene.warnings, *warnings))


def _with_recipe(
    request: TrainRequest, scene: Scene, stored: RunConfig | None, start: Start | None
) -> tuple[TrainRequest, Scene]:
    """A request for the recipe that suits the scene, or for that of a resumed run, or for that of the run that it
    starts from; and the scene with the decision."""
    if stored is not None and (stored.recipe in recipes.names() or ":" in stored.recipe):
        return replace(request, recipe=stored.recipe), scene
    if start is not None and start.recipe in recipes.names():
        told = f"Recipe: {start.recipe}, that of the run it starts from."
        return replace(request, recipe=start.recipe), _told(scene, (told,))
    name, reason = recipes.chosen_for(scene)
    return replace(request, recipe=name), replace(
        scene, decisions=(*scene.decisions, f"Recipe: {name}, since {reason}.")
    )


def _configure(request: TrainRequest, scene: Scene, device: torch.device) -> tuple[TrainConfig, TrainConfig]:
    """The recipe's config on `device`, and the same with the overrides of the request."""
    base = recipes.build(request.recipe, scene, device.type)
    with allowing(request.packages):
        return base, with_techniques(replace_fields(base, request.overrides), request.techniques, scene)


def scene_name(scene: str | Path) -> str:
    """The name of a scene in a config: an absolute folder, or "builtin"."""
    return BUILTIN if scene == BUILTIN else str(expanded(scene).resolve())


def open_data(
    scene: Scene,
    frames: Sequence[int],
    device: torch.device,
    progress: LoadProgress | None,
    what: str = "images",
    rig: CameraRig | None = None,
    depths: bool = False,
    budget: BankBudget | None = None,
) -> LoadedData:
    """Open cameras and pixels of some frames of a scene. Images that are not in the cache are decoded first.

    what: the images in words, for `progress`. rig: the cameras of these frames, if they have been made already.
    depths: read the depth maps of the frames too. budget: the main memory that the images may take; None: half of what
    is free.
    """

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(what, done, total)

    bank = open_bank(scene, frames, bank_budget=None if budget is None else budget.bytes, progress=report)
    rig = rig or CameraRig(scene, frames, device)
    maps = DepthMaps(scene, frames) if depths else None
    digests = depth_digests(scene, frames) if depths else {}
    return LoadedData(TrainData(rig, bank, scene.bounds, scene.background, maps), bank, digests)


def evaluation_frames(scene: Scene, count: int | None = None) -> tuple[int, ...]:
    """Frames of the test split, else of the validation split; `count` evenly spread ones, or all if None."""
    frames = scene.of_split("test") or scene.of_split("val")
    return frames if count is None else tuple(frames[i] for i in spread(len(frames), count))


def split_training(
    scene: Scene, hold_out: int, leave_out: Sequence[str] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Frames to train on, and `hold_out` evenly spread frames of the training split that are held out.

    Training images named in `leave_out` are neither. `ConfigError` if nothing would be left to train on, or if a name
    fits no image.
    """
    left_out = frames_named(scene, leave_out)
    frames = tuple(frame for frame in scene.of_split("train") if frame not in left_out)
    if left_out and not frames:
        raise ConfigError(
            f"{option('leave_out')} names all {len(left_out)} training images; nothing is left to train on.",
            hint="Leave out fewer.",
        )
    if hold_out and hold_out >= len(frames):
        raise ConfigError(
            f"{option('hold_out', hold_out)} leaves nothing to train on: the scene has {len(frames)} training views.",
            hint=f"Hold out at most {max(0, len(frames) - 1)}.",
        )
    held_out = tuple(frames[i] for i in spread(len(frames), hold_out))
    return tuple(frame for frame in frames if frame not in held_out), held_out


def _limits(request: TrainRequest, train: TrainConfig, stored: RunConfig | None) -> tuple[int | None, float | None]:
    if request.replay is not None:
        return request.replay.final_step, None
    if request.steps is None and request.max_seconds is None:
        return (stored.steps, stored.max_seconds) if stored is not None else (train.default_steps, None)
    return request.steps, request.max_seconds


def _schedule(request: TrainRequest, device: torch.device, steps: int | None, max_seconds: float | None) -> Schedule:
    if request.evaluate_views == 0:
        evaluate = Every()
    elif steps is not None:
        evaluate = Every(steps=max(1, steps // _LOOKS))
    else:
        seconds = max_seconds or 0.0
        short = device.type == "cpu" and seconds < _SHORT_ON_CPU
        evaluate = Every(seconds=seconds if short else seconds / _LOOKS)
    schedule = Schedule(evaluate=evaluate, evaluate_views=request.evaluate_views)
    return replace(schedule, metrics=_METRICS_ON_CUDA) if device.type == "cuda" else schedule
