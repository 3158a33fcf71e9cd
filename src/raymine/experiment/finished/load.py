"""Open a trained run for evaluation, rendering and export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raymine import checkpoint
from raymine.config import RunConfig, allowing
from raymine.contracts import ImageSource, Renderer, Scene, activations_of
from raymine.engines import renderer_for
from raymine.errors import RunError, SceneError, option
from raymine.export.model import ExportModel
from raymine.export.paths import require_moment
from raymine.pixels import PixelConfig
from raymine.rays import CameraRig
from raymine.rundir import RunDir
from raymine.scenes import load_scene, scene_digest
from raymine.step import TrainData, TrainState, create_state
from raymine.step.hardness import HardView, hard_view

from ..prepare import resolve_device, split_training
from ..saved.restore import restore_state

# Points that the field evaluates at a time, to bound memory.
_POINTS = 1 << 18


@dataclass(frozen=True)
class LoadedRun:
    """The model of a run, and its scene. `notes` are sentences for the user (a damaged checkpoint, ...)."""

    run: RunDir
    config: RunConfig
    scene: Scene
    state: TrainState
    step: int
    device: torch.device
    notes: tuple[str, ...] = ()

    @cached_property
    def renderer(self) -> Renderer:
        return renderer_for(self.state)

    @property
    def trained(self) -> tuple[int, ...]:
        """The frames of the scene that the run was trained on."""
        return split_training(self.scene, self.config.hold_out, self.config.leave_out)[0]

    def training_poses(self) -> np.ndarray:
        """Poses [I, 3, 4] float64 of the frames `trained`: the refined ones, or those of the scene."""
        poses = np.stack([self.scene.frames[i].pose for i in self.trained])
        if self.state.poses is None:
            return poses
        return self.state.poses.moved(torch.from_numpy(poses).to(self.device)).cpu().numpy()

    def hard_view(
        self,
        images: ImageSource,
        frames: Sequence[int],
        index: int,
        longest: int,
        *,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> HardView | None:
        """Where image `index` of `images` is hard for the model (`step.hardness.hard_view`).

        frames: the frames of the scene that `images` are of; the run must have been trained on them.
        """
        scene = self.scene
        views = TrainData(CameraRig(scene, frames, self.device), images, scene.bounds, scene.background)
        number = self.trained.index(frames[index])
        return hard_view(self.state, views, index, longest, trained_as=number, unwanted=unwanted)

    def exportable(self, time: float | None = None) -> ExportModel:
        """The model for exporters. time: the moment, in 0..1, of a dynamic scene; None and 0 are its beginning.

        `ConfigError` for a later moment of a scene that does not move.
        """
        if time:
            require_moment(self.scene, time)
        frames = [self.scene.frames[i] for i in self.trained]
        views = tuple(self.scene.cameras[frame.camera] for frame in frames)
        moment = (0.0 if time is None else time) if self.scene.dynamic else None
        field, sampler = self.state.shown, self.state.sampler
        return ExportModel(
            field, sampler, self.renderer, self.scene, views, self.training_poses(), self.device, moment, self.step
        )

    @torch.no_grad()
    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3], times [n] -> density [n] per world unit, of the field that is rendered. No graph.

        Density is 0 outside the bounds of the scene. Tensors must be on the run's device.
        """
        bounds = self.scene.bounds
        low, high = (positions.new_tensor(corner) for corner in (bounds.low, bounds.high))
        reach = (high - low) * 2 ** (bounds.levels - 2)
        inside = ((positions - (low + high) / 2).abs() <= reach).all(1).nonzero()[:, 0]
        field = self.state.shown
        activate, density = activations_of(field).density, positions.new_zeros(len(positions))
        for part in inside.split(_POINTS):
            density[part] = activate(field.density(positions[part], None if time is None else time[part]))
        return density


def load_run(
    run_folder: str | Path,
    which: Literal["latest", "best"] | int = "latest",
    device: str = "auto",
    *,
    allow: str | Collection[str] = (),
) -> LoadedRun:
    """Open the latest or the best checkpoint of a run, or that of a step, even while it trains. The scene must exist.

    which: "best" is selected by views held out from training (`hold_out`). Without such views, or before their first
        evaluation, the latest checkpoint is opened, and `notes` say so. A step must be one of the run's checkpoints.
    allow: packages from which the run's config may use classes. They are imported, which runs their code.

    Raises `RunError` for a folder that is not a run, a run without a checkpoint, or a scene that has changed, and
    `CheckpointError` if every checkpoint is damaged, or if training had diverged when the chosen one was saved.
    """
    run = RunDir.open(Path(run_folder))
    with allowing(allow):
        config = run.read_config()
    # CUDA takes a good part of a second to open, mostly in the driver.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_open_device, device)
        found, notes = _pick(run, which, config.hold_out)
        checkpoint.require(found, {"recipe": config.recipe, "config": run.read_digests()})
        target = resolve_device(device)
        scene = _scene_of(run_folder, config)
    if scene_digest(scene) != run.read_manifest().scene_digest:
        raise RunError(
            f"The scene {config.scene} has changed since {run_folder} was trained: other frames, poses or cameras.",
            hint="Put the scene back as it was, or train a new run.",
        )
    scene = scene.reaching(config.train.levels)
    # Building the state needs the bounds of the scene, but no pixels, and images only to count their corrections.
    corrected = config.train.poses is not None or config.train.exposure is not None
    frames = split_training(scene, config.hold_out, config.leave_out)[0] if corrected else ()
    data = TrainData(CameraRig(scene, frames, target), _NoImages(), scene.bounds, scene.background)
    # Nor does it need the state of the pixel sampler.
    state = create_state(replace(config.train, pixels=PixelConfig()), data, seed=config.seed, device=target)
    tensors = {name: value for name, value in found.tensors.items() if not name.startswith("pixels.")}
    restore_state(state, replace(found, tensors=tensors))
    return LoadedRun(run, config, scene, state, found.step, target, notes)


def _scene_of(run_folder: str | Path, config: RunConfig) -> Scene:
    """The scene that a run was trained on. `SceneError` names the run: its user did not name the scene."""
    try:
        return load_scene(config.scene, downscale=config.downscale)
    except SceneError as error:
        hint = "If it was moved, put it back or link it; if it was changed, restore it."
        raise SceneError(f"{run_folder} needs the scene that it was trained on. {error.message}", hint=hint) from error


def _open_device(name: str) -> None:
    """Make the first use of a device, which the next one need not wait for. What fails here fails there again."""
    with contextlib.suppress(Exception):
        device = resolve_device(name)
        torch.empty(1, device=device)
        if device.type == "cuda":
            # Before it loads its first kernel from the cache, Triton hashes its own files, which takes 0.4 s.
            from triton.runtime import cache

            cache.triton_key()


class _NoImages:
    """An image source without images."""

    @property
    def sizes(self) -> np.ndarray:
        return np.zeros((0, 2), dtype=np.int64)

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        raise IndexError("a run opened for looking holds no images")

    def image(self, index: int) -> np.ndarray:
        raise IndexError("a run opened for looking holds no images")

    def mask(self, index: int) -> np.ndarray | None:
        raise IndexError("a run opened for looking holds no images")


def _pick(run: RunDir, which: str | int, hold_out: int) -> tuple[checkpoint.Checkpoint, tuple[str, ...]]:
    if isinstance(which, int):
        return checkpoint.load(checkpoint.path_of(run.checkpoints, which)), ()
    best = checkpoint.load_best(run.checkpoints) if which == "best" and hold_out else None
    if best is not None:
        return best, ()
    latest = checkpoint.load_latest(run.checkpoints)
    if latest is None:
        raise RunError(
            f"The run {run.path} has no checkpoint yet.",
            hint=f"Wait until it has trained for a while, or continue training with {option('resume', True)}.",
        )
    notes = tuple(f"{problem} Using step {latest.checkpoint.step}." for problem in latest.problems)
    if which == "best":
        reason = "Held-out views have not been looked at yet" if hold_out else "No view was held out"
        newest = f"using the newest, step {latest.checkpoint.step}"
        notes += (f"{reason}, so nothing names a best checkpoint; {newest}.",)
    return latest.checkpoint, notes
