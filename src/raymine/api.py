"""The Python API: `train` and `load` return a `Run`, which renders views, evaluates itself and returns densities.

    import raymine

    run = raymine.train("builtin", seconds=30)
    print(run.evaluate().psnr)
    run.render(0, run.scene.frames[0].pose).save("view.png")

This is a thin layer over `raymine.experiment`, which has more options and reports more.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from raymine import pictures
from raymine.cameras import pose_fault
from raymine.config import RunConfig
from raymine.contracts import Camera, Scene, Split
from raymine.errors import ConfigError, renamed_options
from raymine.evaluate import Evaluation
from raymine.experiment import (
    LoadedRun,
    RunResult,
    SilentObserver,
    StartInfo,
    TrainRequest,
    choose_frames,
    load_run,
    score_frames,
    train_with_progress,
)
from raymine.experiment import train as train_request
from raymine.export.video import PictureKind
from raymine.rays import rays_for_camera
from raymine.recipes import DEFAULT, AnyRecipe
from raymine.recipes.policies import policy_overrides
from raymine.scenes.bank import open_bank

Array = np.ndarray | Tensor | Sequence[Any]
"""Numbers as a NumPy array, a tensor or nested sequences."""

Which = Literal["latest", "best"]


def train(
    scene: str | Path,
    recipe: AnyRecipe = DEFAULT,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    downscale: int = 1,
    mining: str | None = None,
    pixels: str | None = None,
    hold_out: int = 0,
    threads: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: bool = True,
    allow: str | Collection[str] = (),
) -> Run:
    """Train on a scene and return the trained run. The command line does the same with `raymine train`.

    scene: a scene folder, or "builtin".
    recipe: a registered name, "package.module:function", a function (scene, device) -> TrainConfig, or a TrainConfig.
    steps, seconds: the limit of the run; give at most one. Without either, the recipe's own number of steps is the
        limit. `seconds` counts training steps only, not loading, compiling or evaluating.
    out: the run folder; None uses the next free `runs/<scene>-<recipe>-<n>`.
    resume: continue the run in `out`.
    mining, pixels: policies, as with `--mining` and `--pixels`; None leaves the recipe's choice.
    hold_out: take this many training views out of training; only they may select a best checkpoint.
    threads: threads of a run on the CPU; None is all cores, or the number that a resumed run began with.
    overrides: settings of the recipe's config to replace, by dotted name.
    progress: show progress on stderr.
    allow: packages from which the config may use classes. They are imported, which runs their code.

    Raises `RaymineError` if the request cannot be carried out; nothing is created then. Ctrl-C saves the run and raises
    `KeyboardInterrupt`. `load` opens the saved run, and `resume=True` with its folder as `out` continues it.
    """
    with renamed_options({"max_seconds": "seconds"}):
        request = TrainRequest(
            scene=scene,
            recipe=recipe,
            out=None if out is None else Path(out).expanduser(),
            resume=resume,
            steps=steps,
            max_seconds=seconds,
            seed=seed,
            device=device,
            downscale=downscale,
            hold_out=hold_out,
            threads=threads,
            overrides={
                **({} if mining is None else policy_overrides(mining)),
                **({} if pixels is None else {"pixels.policy": pixels}),
                **(overrides or {}),
            },
            command=("raymine.train",),
            allow=(allow,) if isinstance(allow, str) else tuple(allow),
        )
        result = train_with_progress(request, _Told()) if progress else train_request(request)
        if result.status == "stopped":
            raise _stopped(result)
        return load(result.run, device=device, allow=request.packages)


def load(
    run: str | Path, *, checkpoint: Which = "latest", device: str = "auto", allow: str | Collection[str] = ()
) -> Run:
    """Open a trained run, even one that is still training. Its scene must not have moved.

    checkpoint: "latest", or "best", which views held out from training select (`raymine train --hold-out`). Without
        such views "best" opens the latest checkpoint, with a warning.
    allow: packages from which the run's config may use classes. They are imported, which runs their code.

    Damaged checkpoints are skipped, with a warning for each.
    """
    if checkpoint not in get_args(Which):
        raise ConfigError(f"`checkpoint` must be 'latest' or 'best', got {checkpoint!r}.")
    loaded = load_run(Path(run).expanduser(), which=checkpoint, device=device, allow=allow)
    for note in loaded.notes:
        warnings.warn(note, stacklevel=2)
    return Run(loaded)


@dataclass(frozen=True, eq=False)
class View:
    """A rendered view: colour [H, W, 3] in 0..1, opacity [H, W] in 0..1, depth [H, W] in world units, all float32.

    Depth is the mean distance along the ray, weighted by the rendering weights; 0 where the ray hits nothing.
    """

    colour: np.ndarray
    opacity: np.ndarray
    depth: np.ndarray

    def save(self, path: str | Path, kind: PictureKind = "colour") -> Path:
        """Write the colour, the depth or the opacity as a PNG picture; return its path."""
        target = Path(path).expanduser()
        if target.suffix.lower() != ".png":
            raise ConfigError(f"A view is saved as PNG; `path` must end in .png, got {str(path)!r}.")
        if kind not in get_args(PictureKind):
            raise ConfigError(f"`kind` must be one of {', '.join(get_args(PictureKind))}, got {kind!r}.")
        picture = {
            "colour": lambda: self.colour,
            "depth": lambda: pictures.depth_picture(self.depth, self.opacity),
            "opacity": lambda: pictures.opacity_picture(self.opacity),
        }[kind]()
        pictures.write_png(target, picture)
        return target


class Run:
    """A trained run, opened for rendering and evaluation. Returned by `train` and `load`."""

    def __init__(self, loaded: LoadedRun) -> None:
        self._loaded = loaded

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, step={self.step}, recipe={self.config.recipe!r}, device={str(self.device)!r})"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._loaded.run.path

    @property
    def step(self) -> int:
        """The training step of the open checkpoint."""
        return self._loaded.step

    @property
    def scene(self) -> Scene:
        """The scene that it was trained on, normalised. Poses are camera-to-world with x right, y up, z backward."""
        return self._loaded.scene

    @property
    def config(self) -> RunConfig:
        """The complete configuration of the run."""
        return self._loaded.config

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._loaded.device

    def render(
        self,
        camera: Camera | int,
        pose: Array,
        *,
        time: float | None = None,
        background: Sequence[float] | None = None,
    ) -> View:
        """Render the view of a camera at a pose. No gradients.

        camera: a `raymine.contracts.Camera`, or an index into `scene.cameras`.
        pose: [3, 4] or [4, 4], camera-to-world, in the same normalised world as the poses of `scene.frames`.
        time: in 0..1, for a dynamic scene.
        background: red, green and blue in 0..1. None uses the background of the scene, or black if it has none.
        """
        chosen = self._camera(camera)
        matrix = _pose(pose)
        backdrop = torch.tensor(_background(background, self.scene), device=self.device)
        rays = rays_for_camera(chosen, matrix, self.scene.bounds, time=_time(time), device=self.device)
        rendered = self._loaded.renderer.render(rays, backdrop)

        def image(values: Tensor, *tail: int) -> np.ndarray:
            shape = (chosen.height, chosen.width, *tail)
            return np.asarray(values.detach().float().nan_to_num(nan=0.0).reshape(shape).cpu().numpy())

        colour, opacity = (values.clamp(0.0, 1.0) for values in (rendered.colour, rendered.opacity))
        return View(image(colour, 3), image(opacity), image(rendered.depth))

    def density(self, points: Array) -> Tensor:
        """World positions [n, 3] -> density [n] float32 per world unit, on the run's device. No gradients.

        Density is 0 outside the bounds of the scene, where nothing is rendered. If `points` is a tensor, it must
        already be on the run's device.
        """
        if isinstance(points, Tensor):
            if points.device.type != self.device.type:
                raise ConfigError(
                    f"`points` must be on {self.device}, where the run is, got {points.device}.",
                    hint="Move them with `points.to(run.device)`.",
                )
            positions = points.detach()
        else:
            positions = torch.from_numpy(_numbers(points, "points")).to(self.device)
        if positions.ndim != 2 or positions.shape[1] != 3:
            raise ConfigError(f"`points` must have shape [n, 3], got {list(positions.shape)}.")
        return self._loaded.density(positions.float())

    def evaluate(self, split: Split = "test", views: int | None = None, out: str | Path | None = None) -> Evaluation:
        """Compute PSNR (dB) and SSIM of the views of a split ("test", "val" or "train").

        views: evaluate this many views, evenly spread over the split; None evaluates all of them.
        out: a folder to write pictures of every view and metrics.json to.
        """
        frames = choose_frames(self.scene, split, views)
        folder = None if out is None else Path(out).expanduser()
        with open_bank(self.scene, frames) as images:
            return score_frames(self._loaded, frames, images, out=folder)

    def _camera(self, camera: Camera | int) -> Camera:
        if isinstance(camera, Camera):
            return camera
        try:
            index = operator.index(camera)
        except TypeError:
            raise ConfigError(
                f"`camera` must be a Camera or the index of one of the scene's, got {type(camera).__name__}."
            ) from None
        if not 0 <= index < len(self.scene.cameras):
            raise ConfigError(f"`camera` must be an index in 0 .. {len(self.scene.cameras) - 1}, got {index}.")
        return self.scene.cameras[index]


class _Told(SilentObserver):
    """Prints which engine trains, where it is not the fast one, and the warnings about the scene."""

    def on_start(self, info: StartInfo) -> None:
        for sentence in info.notes:
            if sentence.startswith("Engine:"):
                print(sentence, file=sys.stderr)
        for sentence in info.warnings:
            print(f"warning: {sentence}", file=sys.stderr)


def _stopped(result: RunResult) -> BaseException:
    """The exception for a run that a signal stopped: KeyboardInterrupt after Ctrl-C, else SystemExit."""
    message = f"stopped at step {result.step}; {result.run} is saved; continue it with `resume=True`"
    return KeyboardInterrupt(message) if result.exit_code == 130 else SystemExit(result.exit_code)


def _numbers(values: Any, name: str) -> np.ndarray:
    """`values` as a float64 array; `ConfigError` if they are not numbers."""
    try:
        found = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`{name}` must be an array of numbers: {error}.") from error


def _pose(pose: Array) -> np.ndarray:
    """`pose` as [3, 4] float64; `ConfigError` if it is not a rigid camera-to-world transform."""
    matrix = _numbers(pose, "pose")
    if matrix.shape == (4, 4):
        if not np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0)):
            raise ConfigError(f"The last row of a [4, 4] `pose` must be 0 0 0 1, got {matrix[3].tolist()}.")
        matrix = matrix[:3]
    if matrix.shape != (3, 4):
        raise ConfigError(f"`pose` must have shape [3, 4] or [4, 4], got {list(matrix.shape)}.")
    fault = pose_fault(matrix)
    if fault is not None:
        raise ConfigError(f"The `pose` {fault}.", hint="A pose is camera-to-world: a rotation and a position.")
    return matrix


def _background(background: Sequence[float] | None, scene: Scene) -> list[float]:
    if background is None:
        return list(scene.background or (0.0, 0.0, 0.0))
    colour = _numbers(background, "background")
    if colour.shape != (3,) or not ((colour >= 0) & (colour <= 1)).all():
        raise ConfigError(f"`background` must be red, green and blue in 0..1, got {background!r}.")
    return [float(value) for value in colour]


def _time(time: float | None) -> float | None:
    if time is not None and not 0 <= time <= 1:
        raise ConfigError(f"`time` must be in 0..1, got {time}.")
    return time
