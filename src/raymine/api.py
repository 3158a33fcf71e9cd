"""The Python API: `train` and `load` return a `Run`, which renders views, evaluates itself and returns densities.

    import raymine

    run = raymine.train("builtin", seconds=30)
    print(run.evaluate().psnr)
    run.render(run.camera_at((3.0, 2.0, 1.0), (0.0, 0.0, 0.0))).save("view.png")

This is a thin layer over `raymine.experiment`, which has more options and reports more.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from raymine._arguments import colour, number, numbers, path_of, pose_matrix, size_of, texts, whole
from raymine.caches import parse_size
from raymine.cameras import from_normalised, look_at, to_normalised
from raymine.config import RunConfig
from raymine.contracts import Camera, Frame, Scene, Split
from raymine.errors import ConfigError, renamed_options
from raymine.evaluate import Evaluation, FitChoice, FitConfig, Lpips, LpipsChoice, PictureChoice
from raymine.evaluate.lpips import WeightsUnavailable, chosen_nets, load_lpips
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
from raymine.export import View as View
from raymine.export import novel_camera, render_view, with_fov
from raymine.export.exporting import ExportFormat, ExportOptions, ExportReport, export_model
from raymine.export.model import World
from raymine.export.paths import require_moment
from raymine.recipes import AUTO, AnyRecipe
from raymine.recipes.policies import fitting_overrides, pixel_overrides, policy_overrides
from raymine.recipes.techniques import Techniques
from raymine.scenes.bank import open_bank

if TYPE_CHECKING:
    from raymine.ingestion import Features, Ingested, Lens, Mapper, Matching

Array = np.ndarray | Tensor | Sequence[Any]
"""Numbers as a NumPy array, a tensor or nested sequences."""

Which = Literal["latest", "best"]


def train(
    scene: str | Path,
    recipe: AnyRecipe = AUTO,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str | torch.device = "auto",
    downscale: int = 1,
    mining: str | None = None,
    pixels: str | None = None,
    refine_poses: bool = False,
    exposure: bool = False,
    init_from: str | Path | None = None,
    progressive: bool = False,
    coarse_to_fine: bool = False,
    distortion: float | None = None,
    free_space: float | None = None,
    opacity_loss: float = 0.0,
    mask_loss: float = 0.0,
    depth_loss: float = 0.0,
    hold_out: int = 0,
    leave_out: Sequence[str] = (),
    threads: int | None = None,
    gpu_memory: int | str | None = None,
    bank_budget: int | str | None = None,
    track: str | Sequence[str] = (),
    profile: bool = False,
    overrides: Mapping[str, Any] | None = None,
    progress: bool = True,
    allow: str | Collection[str] = (),
) -> Run:
    """Train on a scene and return the trained run. The command line does the same with `raymine train`.

    scene: a scene folder, or "builtin".
    recipe: a name, "auto", "package.module:function", a function (scene, device) -> TrainConfig, or a TrainConfig.
    steps, seconds: the limit; give at most one. None is the recipe's own. `seconds` counts training steps alone.
    out: the run folder; None uses the next free `runs/<scene>-<recipe>-<n>`. resume: continue the run in `out`.
    mining, pixels: policies, as with `--mining` and `--pixels`; None leaves the recipe's choice.
    refine_poses: refine the poses of the training images along with the field; `Run.evaluate(fit="poses")` scores it.
    exposure: fit a colour correction for each training image. init_from: another run, whose parameters this one takes.
    progressive: train on images of 1/4, then of 1/2 of their size first. coarse_to_fine: fade fine levels in later.
    distortion, free_space, opacity_loss, mask_loss, depth_loss: weights of loss terms; 0 is off. Such a weight may be
        None for the first two: the recipe's own.
    hold_out: take this many views out of training; only they may select a best checkpoint.
    leave_out: training images that are not trained on: file names, or paths in the scene folder.
    threads: threads of a run on the CPU; None is all cores, or the number that a resumed run began with.
    gpu_memory, bank_budget: what the run may take of a GPU, and its images of main memory; bytes, or such as "8GB".
    track: "tensorboard", "trackio" or "mlflow", which receive the metrics too. profile: write a trace to `profile`.
    overrides: settings of the recipe's config to replace, by dotted name.
    progress: show progress on stderr: a bar in a terminal, a line every ten seconds in a notebook or a log.
    allow: packages from which the config may use classes. They are imported, which runs their code.

    Raises `RaymineError` if the request cannot be carried out; nothing is created then. Ctrl-C saves the run and raises
    `KeyboardInterrupt`. `load` opens the saved run, and `resume=True` with its folder as `out` continues it.
    """
    if not isinstance(overrides, Mapping | None):
        raise ConfigError(f"`overrides` must be a dict such as {{'batch.samples': 4096}}, got {overrides!r}.")
    with renamed_options({"max_seconds": "seconds"}):
        request = TrainRequest(
            scene="builtin" if scene == "builtin" else path_of(scene, "scene"),
            recipe=recipe,
            out=None if out is None else path_of(out, "out"),
            resume=resume,
            steps=None if steps is None else whole(steps, "steps"),
            max_seconds=None if seconds is None else number(seconds, "seconds"),
            seed=whole(seed, "seed"),
            device=str(device),
            downscale=whole(downscale, "downscale"),
            hold_out=whole(hold_out, "hold_out"),
            leave_out=texts(leave_out, "leave_out"),
            threads=None if threads is None else whole(threads, "threads"),
            gpu_memory=None if gpu_memory is None else parse_size(str(gpu_memory)),
            bank_budget=None if bank_budget is None else parse_size(str(bank_budget)),
            init_from=None if init_from is None else path_of(init_from, "init_from"),
            techniques=Techniques(
                progressive=bool(progressive),
                coarse_to_fine=bool(coarse_to_fine),
                opacity_loss=number(opacity_loss, "opacity_loss"),
                mask_loss=number(mask_loss, "mask_loss"),
                depth_loss=number(depth_loss, "depth_loss"),
                distortion=None if distortion is None else number(distortion, "distortion"),
                free_space=None if free_space is None else number(free_space, "free_space"),
            ),
            track=(track,) if isinstance(track, str) else tuple(str(name) for name in track),
            profile=bool(profile),
            overrides={
                **({} if mining is None else policy_overrides(str(mining))),
                **({} if pixels is None else pixel_overrides(str(pixels))),
                **fitting_overrides(poses=bool(refine_poses), exposure=bool(exposure)),
                **(overrides or {}),
            },
            command=("raymine.train",),
            allow=texts(allow, "allow"),
        )
        result = train_with_progress(request, _Told()) if progress else train_request(request)
        if result.status == "stopped":
            raise _stopped(result)
        return load(result.run, device=device, allow=request.packages)


def load(
    run: str | Path,
    *,
    checkpoint: Which = "latest",
    device: str | torch.device = "auto",
    allow: str | Collection[str] = (),
) -> Run:
    """Open a trained run, even one that is still training. Its scene must not have moved.

    checkpoint: "latest", or "best", which views held out from training select (`raymine train --hold-out`). Without
        such views "best" opens the latest checkpoint, with a warning.
    allow: packages from which the run's config may use classes. They are imported, which runs their code.

    Damaged checkpoints are skipped, with a warning for each.
    """
    if checkpoint not in get_args(Which):
        raise ConfigError(f"`checkpoint` must be 'latest' or 'best', got {checkpoint!r}.")
    loaded = load_run(path_of(run, "run"), which=checkpoint, device=str(device), allow=texts(allow, "allow"))
    for note in loaded.notes:
        warnings.warn(note, stacklevel=2)
    return Run(loaded)


def ingest(
    photos: str | Path,
    *,
    out: str | Path,
    frames: int = 60,
    matching: Matching = "auto",
    mapper: Mapper = "incremental",
    features: Features = "robust",
    lens: Lens = "auto",
    undistort: bool = False,
    feature_size: int = 2000,
    threads: int = 0,
) -> Ingested:
    """Compute the poses of photos, or of frames of a video, and write the scene folder `out` (docs/ingest.md).

    photos: a folder, or a video, of which the `frames` sharpest frames are taken. matching: compare all pairs
        ("exhaustive"), neighbours by name ("sequential"), or decide by their number ("auto"). mapper: "incremental", or
        "global" for hundreds of photos. features: "robust", or "fast", which needs photos from closer together.
        lens: "pinhole", "simple-radial", "opencv", "fisheye", or "auto".
    undistort: write photos without lens distortion. feature_size: longer side in pixels at which features are searched.
    threads: 0 uses all cores.

    The result says which photos have a pose, and why others have none. A call that was stopped continues. Needs the
    extra `ingest`.
    """
    from raymine.ingestion import IngestConfig
    from raymine.ingestion import ingest as make

    config = IngestConfig(
        frames=whole(frames, "frames"),
        matching=matching,
        mapper=mapper,
        features=features,
        lens=lens,
        undistort=bool(undistort),
        feature_size=whole(feature_size, "feature_size"),
        threads=whole(threads, "threads"),
    )
    return make(path_of(photos, "photos"), path_of(out, "out"), config)


@dataclass(frozen=True, eq=False)
class PosedCamera:
    """A camera and its pose [3, 4], camera-to-world in the normalised world. `Run.camera_at` makes one."""

    camera: Camera
    pose: np.ndarray


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

    @property
    def training_poses(self) -> np.ndarray:
        """[I, 3, 4] float64: poses of the images it was trained on, refined if the run refined them; normalised."""
        return self._loaded.training_poses()

    def to_normalised(self, values: Array) -> np.ndarray:
        """Poses or points of the scene's own files -> the normalised world, in which the run renders.

        values: poses [..., 3, 4] or [..., 4, 4], camera-to-world with x right, y up, z backward, or points [..., 3].
        """
        return to_normalised(self.scene, numbers(values, "values"))

    def from_normalised(self, values: Array) -> np.ndarray:
        """The inverse of `to_normalised`: poses or points of the normalised world -> that of the scene's own files."""
        return from_normalised(self.scene, numbers(values, "values"))

    def camera_at(
        self,
        position: Array,
        target: Array,
        up: Array | None = None,
        *,
        size: tuple[int, int] | None = None,
        fov: float | None = None,
    ) -> PosedCamera:
        """A camera at `position` [3] that looks at `target` [3], for `render`. All are in the scene's own world.

        up: the direction [3] that is up in the picture; None uses the scene's, which its cameras determine.
        size: width and height of the picture in pixels; None uses those of the scene's first camera.
        fov: vertical field of view in degrees, 1 to 170; None uses that of the scene's first camera, at most 110.
        """
        camera = novel_camera(self.scene.cameras[self.scene.frames[0].camera], size_of(size))
        if fov is not None:
            degrees = number(fov, "fov")
            if not 1 <= degrees <= 170:
                raise ConfigError(f"`fov` is the vertical field of view in degrees, 1 to 170; got {fov}.")
            camera = with_fov(camera, degrees)
        sky = from_normalised(self.scene, np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
        upward = sky[0] - sky[1] if up is None else numbers(up, "up")
        pose = look_at(numbers(position, "position"), numbers(target, "target"), upward)
        return PosedCamera(camera, to_normalised(self.scene, pose))

    def render(
        self,
        camera: PosedCamera | Frame | Camera | int,
        pose: Array | None = None,
        *,
        size: tuple[int, int] | None = None,
        time: float | None = None,
        background: str | Sequence[float] | None = None,
    ) -> View:
        """Render the view of a camera. No gradients.

        camera: what `camera_at` returns, or a frame of `scene.frames`; or, with `pose`, a `raymine.Camera` or an index
            into `scene.cameras`.
        pose: [3, 4] or [4, 4], camera-to-world in the normalised world, as in `scene.frames`. `to_normalised` takes a
            pose of the scene's own world there.
        size: width and height of the picture in pixels, instead of the camera's; the vertical field of view stays, and
            a lens is not distorted.
        time: the moment to show, in 0..1, where the scene moves; None uses that of the frame. A run that models motion
            needs one of them.
        background: red, green and blue in 0..1, or the name of a colour ("white", "#ff8000"). None uses the background
            of the scene, or black if it has none.
        """
        if isinstance(camera, PosedCamera | Frame):
            if pose is not None:
                raise ConfigError("`pose` cannot be given with a camera or a frame that has its own.")
            lens, place = self._camera(camera.camera), camera.pose
        else:
            lens, place = self._camera(camera), pose_matrix(pose, "pose")
        if time is None and isinstance(camera, Frame):
            time = camera.time
        wanted = size_of(size)
        return render_view(
            self._loaded.renderer,
            lens if wanted is None else novel_camera(lens, wanted),
            place,
            self.scene.bounds,
            background=(self.scene.background or (0.0, 0.0, 0.0)) if background is None else colour(background),
            time=self._time(time),
            device=self.device,
        )

    def density(self, points: Array, *, time: float | None = None) -> Tensor:
        """Positions [n, 3] in the normalised world -> density [n] float32 per unit, on the run's device. No gradients.

        Density is 0 outside the bounds of the scene, where nothing is rendered. If `points` is a tensor, it must
        already be on the run's device. time: the moment, in 0..1, of a run that models motion.
        """
        if isinstance(points, Tensor):
            if points.device.type != self.device.type:
                raise ConfigError(
                    f"`points` must be on {self.device}, where the run is, got {points.device}.",
                    hint="Move them with `points.to(run.device)`.",
                )
            positions = points.detach()
        else:
            positions = torch.from_numpy(numbers(points, "points")).to(self.device)
        if positions.ndim != 2 or positions.shape[1] != 3:
            raise ConfigError(f"`points` must have shape [n, 3], got {list(positions.shape)}.")
        if not positions.isfinite().all():
            raise ConfigError("`points` must be finite; some are NaN or infinite.")
        moment = self._time(time)
        when = None if moment is None else torch.full((len(positions),), moment, device=self.device)
        return self._loaded.density(positions.float(), when)

    def evaluate(
        self,
        split: Split = "test",
        views: int | None = None,
        out: str | Path | None = None,
        *,
        pictures: PictureChoice = "all",
        fit: FitChoice | None = None,
        lpips: LpipsChoice | None = None,
    ) -> Evaluation:
        """Compute PSNR (dB), SSIM and, if asked for, LPIPS of the views of a split ("test", "val" or "train").

        views: evaluate this many views, evenly spread over the split; None evaluates all of them.
        out: a folder to write metrics.json and pictures to. They replace those of an earlier evaluation.
        pictures: of every view ("all"), of the first four ("few") or of none ("none").
        fit: also score the views after their poses ("poses"), exposures ("exposure") or "both" were fitted to their
            images, with the field frozen (docs/poses.md). The result has these scores as `fitted`, beside the others.
        lpips: also compute LPIPS with AlexNet ("alex"), VGG16 ("vgg") or "both" (docs/evaluation.md). The weights are
            downloaded once; if that fails, a warning says so, and the other scores are computed.
        """
        networks = [] if lpips is None else self._lpips(lpips)
        wanted = None if fit is None else FitConfig(fit)
        frames = choose_frames(self.scene, split, None if views is None else whole(views, "views"))
        folder = None if out is None else path_of(out, "out")
        with open_bank(self.scene, frames) as images:
            return score_frames(self._loaded, frames, images, out=folder, pictures=pictures, fit=wanted, lpips=networks)

    def _lpips(self, choice: LpipsChoice) -> list[Lpips]:
        try:
            return [load_lpips(net, self.device) for net in chosen_nets(choice)]
        except WeightsUnavailable as error:
            warnings.warn(f"no LPIPS: {error}", stacklevel=3)
            return []

    def _time(self, time: float | None) -> float | None:
        """A time in 0..1; None in a static scene, and where nothing in the run depends on time."""
        if time is not None:
            moment = number(time, "time")
            require_moment(self.scene, moment)
            return moment
        if getattr(self.config.train.field, "dynamic", False):
            raise ConfigError(
                "`time` is missing: the scene moves.", hint="Give a `time` in 0..1, such as time=0.5, or a frame."
            )
        return None

    def export(
        self,
        path: str | Path,
        *,
        format: ExportFormat | None = None,
        world: World = "scene",
        box: Sequence[float] | None = None,
        resolution: int | None = None,
        threshold: float | None = None,
        faces: int | None = None,
        texture: int | None = None,
        count: int | None = None,
        degree: int | None = None,
        refine: int | None = None,
        longest: int | None = None,
        loader: bool = False,
        time: float | None = None,
        overwrite: bool = False,
    ) -> ExportReport:
        """Export the model to a file, read it back and compare it with the model (docs/export.md).

        path: its suffix says the format: .glb, .obj (mesh), .html (page), .safetensors (snapshot), .onnx. A .ply needs
            `format`: "mesh", "splats" or "points".
        world: coordinates of the file and of `box`: "scene", or "normalised", as in `scene.frames`.
        box: six numbers, low x y z and high x y z.
        time: in 0..1, the moment of a dynamic scene.

        The other options belong to one format each; None is its default, which `ExportOptions` names.
        """
        options = ExportOptions(
            format=format,
            world=world,
            box=None if box is None else tuple(float(value) for value in numbers(box, "box").reshape(-1)),
            resolution=None if resolution is None else whole(resolution, "resolution"),
            threshold=None if threshold is None else number(threshold, "threshold"),
            faces=None if faces is None else whole(faces, "faces"),
            texture=None if texture is None else whole(texture, "texture"),
            count=None if count is None else whole(count, "count"),
            degree=None if degree is None else whole(degree, "degree"),
            refine=None if refine is None else whole(refine, "refine"),
            longest=None if longest is None else whole(longest, "longest"),
            loader=bool(loader),
            overwrite=bool(overwrite),
        )
        return export_model(self._loaded.exportable(self._time(time)), path_of(path, "path"), options)

    def _camera(self, camera: Camera | int) -> Camera:
        if isinstance(camera, Camera):
            return camera
        try:
            index = operator.index(camera)
        except TypeError:
            raise ConfigError(
                f"`camera` must be a camera, a frame or the index of one of the scene's, got {type(camera).__name__}.",
                hint="For a camera in your own coordinates: run.render(run.camera_at(position, target)).",
            ) from None
        if not 0 <= index < len(self.scene.cameras):
            raise ConfigError(f"`camera` must be an index in 0 .. {len(self.scene.cameras) - 1}, got {index}.")
        return self.scene.cameras[index]


class _Told(SilentObserver):
    """Prints which engine trains, where it is not the fast one, and the warnings about the scene."""

    def on_start(self, info: StartInfo) -> None:
        for sentence in (told for told in info.notes if told.startswith("Engine:")):
            print(sentence, file=sys.stderr)
        for sentence in info.warnings:
            print(f"warning: {sentence}", file=sys.stderr)


def _stopped(result: RunResult) -> BaseException:
    """The exception for a run that a signal stopped: KeyboardInterrupt after Ctrl-C, else SystemExit."""
    message = f"stopped at step {result.step}; {result.run} is saved; continue it with `resume=True`"
    return KeyboardInterrupt(message) if result.exit_code == 130 else SystemExit(result.exit_code)
