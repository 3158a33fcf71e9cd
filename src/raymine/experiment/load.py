"""A trained run, opened for looking: evaluation, rendering, export."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raymine import checkpoint
from raymine.config import RunConfig, allowing
from raymine.contracts import Renderer, Scene, activations_of
from raymine.engines import renderer_for
from raymine.errors import RunError, option
from raymine.pixels import PixelConfig
from raymine.rays import CameraRig
from raymine.rundir import RunDir
from raymine.scenes import load_scene, scene_digest
from raymine.step import TrainData, TrainState, create_state

from .prepare import resolve_device

# Points asked of a field at a time, so that memory stays bounded.
_POINTS = 1 << 18


@dataclass(frozen=True)
class LoadedRun:
    """A run's model and what it was trained on. `notes` are sentences for the user (a damaged checkpoint, ...)."""

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

    @torch.no_grad()
    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] world positions, [n] times -> [n] density per world unit, of the field that is rendered.

        It is 0 outside the box that samples may lie in. Tensors are on the run's device.
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
    which: Literal["latest", "best"] = "latest",
    device: str = "auto",
    *,
    allow: str | Collection[str] = (),
) -> LoadedRun:
    """Open the newest or the best checkpoint of a run, also while it trains. The scene must still be there.

    allow: packages that the run's config may name classes of; they are imported, and importing runs their code.
    "best" is selected by views that were held out from training (`hold_out`); without any, or before they were looked
    at, the newest is opened, and `notes` say so. `RunError` for a folder that is no run, a
    run with no checkpoint yet, or a scene that has changed; `CheckpointError` when every checkpoint is damaged.
    """
    run = RunDir.open(Path(run_folder))
    with allowing(allow):
        config = run.read_config()
    found, notes = _pick(run, which, config.hold_out)
    checkpoint.require(found, {"recipe": config.recipe, "config": run.read_digests()})
    target = resolve_device(device)
    scene = load_scene(config.scene, downscale=config.downscale)
    if scene_digest(scene) != run.read_manifest().scene_digest:
        raise RunError(
            f"The scene {config.scene} has changed since {run_folder} was trained: other frames, poses or cameras.",
            hint="Put the scene back as it was, or train a new run.",
        )
    # No pixel is needed to rebuild a state: only where the scene lies.
    data = TrainData(CameraRig(scene, (), target), _NoImages(), scene.bounds, scene.background)
    # Nor does looking need to know which pixels training would draw next.
    state = create_state(replace(config.train, pixels=PixelConfig()), data, seed=config.seed, device=target)
    tensors = {name: value for name, value in found.tensors.items() if not name.startswith("pixels.")}
    state.restore(tensors, found.scalars)
    return LoadedRun(run, config, scene, state, found.step, target, notes)


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


def _pick(run: RunDir, which: str, hold_out: int) -> tuple[checkpoint.Checkpoint, tuple[str, ...]]:
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
