"""Prove that a model gives the images that its evaluation gave: render the test views again and compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import Tensor

from raymine import pictures
from raymine.contracts import FieldInput, FieldOutput, Renderer
from raymine.errors import ConfigError, RunError, option
from raymine.evaluate.protocol import quantised
from raymine.export import snapshot_loader
from raymine.export.onnx_file import OnnxField
from raymine.files import UnreadableFile, read_json
from raymine.kernels.activations import NGP
from raymine.rays import CameraRig
from raymine.render import VolumeRenderer
from raymine.run_files import CHECKPOINTS, EVALUATION, list_steps

from .load import LoadedRun, load_run
from .scores import frames_by_name

LEVELS = 1
"""Levels of 255 by which a pixel may differ where it is rendered by other code or on another device."""


@dataclass(frozen=True)
class Verified:
    """What was compared. largest: the largest difference of a pixel, in levels of 255. mean: over all pixels.

    exact: compared with the checkpoint rendered in float32 instead of with the pictures of the evaluation.
    """

    views: int
    largest: int
    mean: float
    exact: bool = False

    @property
    def same(self) -> bool:
        return self.largest <= LEVELS


def verify_run(
    loaded: LoadedRun, renderer: Renderer | None = None, progress: Callable[[int, int], None] | None = None
) -> Verified:
    """Render the views whose pictures the evaluation of a run kept, and compare the pixels.

    renderer: that of another form of the model, such as an exported file; None is that of the run's checkpoint.
    `RunError` if the run was not evaluated with pictures.

    On CUDA, fused kernels evaluate in float16 what exported files compute in float32. There, another form of the model
    is compared with the checkpoint in float32, and the checkpoint, as evaluated, with the pictures (`in_halves`).
    """
    folder = loaded.run.path / Path(EVALUATION).parent
    frames = _evaluated(loaded, folder)
    rig = CameraRig(loaded.scene, [frame for frame, _ in frames], loaded.device)
    shown = renderer or loaded.renderer
    exact = loaded.state.renderer() if renderer is not None and in_halves(loaded) else None
    backdrop = torch.tensor(loaded.scene.background or (0.0, 0.0, 0.0), device=loaded.device)
    largest, total, pixels = 0, 0.0, 0
    for i, (_, picture) in enumerate(frames):
        before = np.asarray(Image.open(picture).convert("RGB"))
        rays = rig.rays_for_image(i)
        if exact is not None:
            before = _levels(exact.render(rays, backdrop).colour, before)
        off = np.abs(_levels(shown.render(rays, backdrop).colour, before).astype(np.int16) - before)
        largest, total, pixels = max(largest, int(off.max())), total + float(off.sum()), pixels + off.size
        if progress is not None:
            progress(i + 1, len(frames))
    return Verified(len(frames), largest, total / pixels if pixels else math.nan, exact is not None)


def in_halves(loaded: LoadedRun) -> bool:
    """Whether the run's checkpoint is rendered in float16, by fused kernels."""
    return not isinstance(loaded.renderer, VolumeRenderer)


def _levels(colour: Tensor, like: np.ndarray) -> np.ndarray:
    """Rendered colours as the levels of a picture, in the shape of another one."""
    values = quantised(colour.detach().float().nan_to_num(nan=0.0)).reshape(like.shape).cpu().numpy()
    return pictures.to_uint8(values)


def _evaluated(loaded: LoadedRun, folder: Path) -> list[tuple[int, Path]]:
    """The frames that were evaluated and whose pictures are there, with their pictures."""
    hint = f"Evaluate it first: raymine eval {loaded.run.path}"
    try:
        listed = [view["name"] for view in read_json(folder / Path(EVALUATION).name)["images"]]
    except (UnreadableFile, KeyError, TypeError) as error:
        raise RunError(f"{loaded.run.path} has no evaluation to compare with.", hint=hint) from error
    frames = frames_by_name(loaded.scene, listed)
    found = [(frame, folder / "images" / f"{name}-pred.png") for name, frame in frames.items()]
    kept = [(frame, picture) for frame, picture in found if picture.is_file()]
    if not kept:
        raise RunError(f"The evaluation of {loaded.run.path} kept no pictures to compare with.", hint=hint)
    return kept


def load_evaluated(run_folder: Path, device: str = "auto", *, allow: str | Collection[str] = ()) -> LoadedRun:
    """Open the checkpoint of a run that was evaluated last; the latest if the evaluation does not name it.

    `RunError` if the run does not have that checkpoint any more.
    """
    try:
        step = read_json(run_folder / EVALUATION).get("step")
    except (UnreadableFile, AttributeError):
        step = None
    if type(step) is not int:
        return load_run(run_folder, device=device, allow=allow)
    if step not in list_steps(run_folder / CHECKPOINTS):
        raise RunError(
            f"The evaluation of {run_folder} is of its checkpoint of step {step}, which is not there any more.",
            hint=f"Evaluate it again: raymine eval {run_folder}",
        )
    return load_run(run_folder, step, device, allow=allow)


class _ExportedField:
    """An exported file as a `contracts.Field`, by the loader that is handed out with snapshots or by ONNX Runtime."""

    activations = NGP

    def __init__(self, field: snapshot_loader.Field | OnnxField) -> None:
        self._field = field

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        if isinstance(self._field, OnnxField):
            return self._field.density(positions)
        return self._field.geometry(positions)[:, 0]

    def forward(self, query: FieldInput) -> FieldOutput:
        return FieldOutput(*self._field(query.positions, query.directions))


def exported_renderer(model: Path, loaded: LoadedRun) -> Renderer:
    """The renderer of an exported snapshot or ONNX file, with samples where the run has them.

    loaded: the checkpoint that was evaluated. `ConfigError` for any other file, and for one of another checkpoint.
    """
    writes = f"`raymine export {loaded.run.path}` writes a snapshot (.safetensors) or ONNX (.onnx)."
    if not model.is_file():
        raise ConfigError(f"{option('model', model)}: there is no such file.", hint=writes)
    try:
        field, step = _open_exported(model, loaded)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(
            f"{model} cannot be rendered: {str(error).strip() or type(error).__name__}.", hint=writes
        ) from error
    if step is not None and step != loaded.step:
        raise ConfigError(
            f"{model} was exported from the checkpoint of step {step}, but that of step {loaded.step} was evaluated: "
            "their images differ.",
            hint=f"Evaluate and export the same one: {option('checkpoint', 'best')} for both, or for neither.",
        )
    return VolumeRenderer(_ExportedField(field), loaded.state.sampler, stop=loaded.config.train.mining.stop)


def _open_exported(model: Path, loaded: LoadedRun) -> tuple[snapshot_loader.Field | OnnxField, int | None]:
    """The field of an exported file, and the step of its checkpoint; None for files of earlier versions."""
    if model.suffix.lower() == ".onnx":
        network = OnnxField(model)
        return network, network.step
    field = snapshot_loader.load(str(model), str(loaded.device))
    step = field.description.get("step")
    return field, step if isinstance(step, int) else None
