"""`raymine render`: render novel views of a trained run as video or frames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import tyro

from raymine.errors import ConfigError, did_you_mean
from raymine.files import obstacle

from .. import output
from .opening import open_run

if TYPE_CHECKING:
    from raymine.contracts import Scene
    from raymine.experiment import LoadedRun
    from raymine.export import CameraPath, FramePictures
    from raymine.export.frames import PictureKind
    from raymine.export.paths import Moment

_VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".gif")


@dataclass(frozen=True)
class Render:
    """Render novel views of a trained run along a camera path, to an MP4 video or a folder of PNG frames."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    path: str = "auto"
    """`orbit` around the scene, `spiral`, `still` (the first test view), a JSON path file (its format is in
    docs/paths.md), or `auto`: a spiral where all cameras face one way, else an orbit."""
    time: str | None = None
    """For a scene that moves: a moment in 0..1 that all views show, or `sweep`, which runs from 0 to 1 along the path.
    `sweep`, or the times of the path file, if not given."""
    write_path: Path | None = None
    """Write the camera path to this JSON file instead of rendering it: a start for a path of your own."""
    frames: int | None = None
    """Number of views; if not given, 120, or the number in the path file, or 1 where all views would be the same."""
    fps: float = 30.0
    """Views per second of video."""
    size: str | None = None
    """Picture size as WIDTHxHEIGHT; the size of the training images if not given."""
    out: Path | None = None
    """FILE.mp4 for video, any other name for a folder of frames. In the `export` folder of the run if not given."""
    overwrite: bool = False
    """Replace what `--out` names: a video, or frames in a folder that is not empty."""
    depth: bool = False
    """Also write depth pictures: near is light, far is dark."""
    opacity: bool = False
    """Also write opacity pictures: white is opaque."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The checkpoint to render; `best` is selected by the views of `raymine train --hold-out`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        started = perf_counter()
        wanted = parse_size(self.size)
        if self.write_path is not None and self.write_path.is_file():
            raise ConfigError(
                f"--write-path {self.write_path} exists; a path that you have edited would be lost.",
                hint="Give another name, or remove the file first.",
            )
        loaded = open_run(self.run, checkpoint=self.checkpoint, device=self.device, allow=self.allow)
        name, path = choose_path(self.path, loaded.scene, self.frames, wanted, parse_time(self.time, loaded.scene))
        ready = perf_counter()
        written = self._write_path(loaded.scene, path) if self.write_path else self._render(loaded, name, path)
        ended = perf_counter()
        if self.json:
            camera = path.cameras[0]
            found = {"run": self.run, "step": loaded.step, "path": name, "views": len(path)}
            output.emit_json({**found, "width": camera.width, "height": camera.height, "files": written})
        else:
            for file in written:
                output.results().print(str(file), markup=False, soft_wrap=True)
        if not self.write_path:
            output.took(ended - started, {"rendering and encoding": ended - ready})
        return 0

    def _write_path(self, scene: Scene, path: CameraPath) -> tuple[Path, ...]:
        from raymine.export import to_file

        assert self.write_path is not None
        to_file(path, scene, self.write_path)
        output.say(f"{len(path)} views, in the coordinates of the scene's files. Render them with --path FILE.")
        return (self.write_path,)

    def _render(self, loaded: LoadedRun, name: str, path: CameraPath) -> tuple[Path, ...]:
        target = self.out if self.out is not None else default_target(self.run / "export", name)
        kinds: tuple[PictureKind, ...] = (
            "colour",
            *(("depth",) if self.depth else ()),
            *(("opacity",) if self.opacity else ()),
        )
        # Without --out the video is raymine's own, in the run folder, and the newest is wanted.
        own = self.out is None and target.suffix == ".mp4"
        check_output(target, overwrite=self.overwrite or own)
        output.say(f"Rendering {len(path)} views ({name}) at {path.cameras[0].width}x{path.cameras[0].height}")
        with output.progress_bar("Rendering") as progress:
            return write_views(views_along(loaded, path, progress), target, kinds, self.fps)


def parse_size(text: str | None) -> tuple[int, int] | None:
    """`320x240` -> (320, 240)."""
    from raymine.export.paths import require_size

    if text is None:
        return None
    match = re.fullmatch(r"0*([1-9][0-9]{0,8})[xX]0*([1-9][0-9]{0,8})", text)
    if match is None:
        raise ConfigError(f"--size must look like 320x240 (width x height in pixels), got {text[:40]!r}.")
    size = int(match[1]), int(match[2])
    require_size(*size)
    return size


def parse_time(text: str | None, scene: Scene) -> Moment | None:
    """`0.3` -> 0.3, `sweep` -> "sweep"; `ConfigError` for anything else, and in a scene that does not move."""
    from raymine.export.paths import require_moment

    if text is None:
        return None
    try:
        moment: Moment = "sweep" if text == "sweep" else float(text)
    except ValueError:
        raise ConfigError(f"--time must be a number in 0..1 or `sweep`, got {text[:40]!r}.") from None
    require_moment(scene, moment)
    return moment


def choose_path(
    asked: str, scene: Scene, frames: int | None, size: tuple[int, int] | None, moment: Moment | None = None
) -> tuple[str, CameraPath]:
    """The name and the views of the camera path `asked`, at the times of `moment` if it is given."""
    from raymine import export

    name, path = _choose_views(asked, scene, frames, size, moves=scene.dynamic and not isinstance(moment, float))
    if moment is None:
        return name, path
    name = name if moment == "sweep" else f"{name}-at-{moment:g}"
    return name, export.at_time(path, scene, moment)


def _choose_views(
    asked: str, scene: Scene, frames: int | None, size: tuple[int, int] | None, moves: bool
) -> tuple[str, CameraPath]:
    """moves: whether what is seen changes along the path, even if the camera stands still."""
    from raymine import export
    from raymine.export.curves import require_views

    if frames is not None:
        require_views(frames)
    if asked == "auto":
        asked = "spiral" if export.forward_facing(scene) else "orbit"
        why = "all face one way" if asked == "spiral" else "do not all face one way"
        output.say(f"Path: {asked}, since the cameras {why}")
    if asked == "orbit":
        return asked, export.orbit(scene, frames or 120, size=size)
    if asked == "spiral":
        return asked, export.spiral(scene, frames or 120, size=size)
    if asked == "still":
        return asked, export.still(scene, frames or (120 if moves else 1), size=size)
    meant = did_you_mean(asked, ("auto", "orbit", "spiral", "still"))
    if meant and not Path(asked).exists():
        raise ConfigError(f"--path {asked}: there is no such path.{meant}", hint="Or give a JSON path file.")
    return Path(asked).stem, export.from_file(Path(asked), scene, n=frames, size=size)


def default_target(folder: Path, name: str) -> Path:
    """A video file if the `video` extra is installed, else the next free folder for frames."""
    import importlib.util

    if importlib.util.find_spec("av") is not None:
        return folder / f"{name}.mp4"
    output.warn("Writing PNG frames; for MP4 video: pip install 'raymine[video]'")
    number, target = 2, folder / f"{name}-frames"
    while target.exists():
        number, target = number + 1, folder / f"{name}-frames-{number}"
    return target


def check_output(target: Path, *, overwrite: bool = False) -> None:
    """Raise `ConfigError`, before rendering starts, if the result cannot be written to `target`.

    overwrite: a video there, or frames in a folder that is not empty, may be replaced.
    """
    from raymine.export.video import require_av

    suffix = target.suffix.lower()
    video = suffix == ".mp4"
    fault = obstacle(target, folder=not video)
    if video:
        require_av()
    if fault:
        needs = "a video needs a file name" if video else "frames need a folder"
        raise ConfigError(f"--out {target} {fault}; {needs}.", hint="Give FILE.mp4 or a folder.")
    if suffix in _VIDEO_SUFFIXES and not video:
        raise ConfigError(f"--out {target}: video is written as .mp4, not {suffix}.", hint="Give FILE.mp4 or a folder.")
    if overwrite:
        return
    if video and target.exists():
        raise ConfigError(f"--out {target} exists.", hint="Give another name, or replace it with --overwrite.")
    if not video and target.is_dir() and any(target.iterdir()):
        raise ConfigError(
            f"--out {target} is not empty; new frames would mix with what is there.",
            hint="Give a new or empty folder, or replace frames of the same names with --overwrite.",
        )


def views_along(loaded: LoadedRun, path: CameraPath, progress: Callable[[int, int], None]) -> Iterator[FramePictures]:
    """Render the views of a trained run along `path`, over the scene's background, or black if it has none."""
    from raymine.export import render_path

    return render_path(
        loaded.renderer,
        path,
        loaded.scene.bounds,
        background=loaded.scene.background or (0.0, 0.0, 0.0),
        device=loaded.device,
        progress=progress,
    )


def write_views(
    views: Iterator[FramePictures], target: Path, kinds: tuple[PictureKind, ...], fps: float
) -> tuple[Path, ...]:
    """Write a video per kind (`x.mp4`, `x-depth.mp4`, ...) or one folder of frames; return the videos or the folder."""
    from raymine.export import write_frames, write_videos

    if target.suffix.lower() == ".mp4":
        return write_videos(views, target, kinds=kinds, fps=fps)
    write_frames(views, target, kinds=kinds)
    return (target,)
