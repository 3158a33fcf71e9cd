"""`raymine export`: take a trained model away as a mesh, splats, points, a page, a snapshot or ONNX."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from raymine.errors import ConfigError, renamed_options

from .. import output
from .opening import open_run

if TYPE_CHECKING:
    from raymine.export.exporting import ExportOptions, ExportReport


@dataclass(frozen=True)
class Export:
    """Export a trained run: a mesh (.glb, .ply, .obj), Gaussian splats (.ply), a page to fly through them (.html), a
    point cloud (.ply), a snapshot (.safetensors) or ONNX (.onnx). The file is read back and compared with the model."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    to: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """The file to write; its suffix says the format. Repeat it for more files: each takes the options that its format
    has."""
    format: Literal["mesh", "splats", "points", "page", "snapshot", "onnx"] | None = None
    """The format, where the suffix leaves it open: a .ply holds a mesh, splats or points."""
    world: Literal["scene", "normalised"] = "scene"
    """Coordinates of the file: those of the scene's own files, or the normalised ones that raymine trains in."""
    box: str | None = None
    """Export only this box: LOWX,LOWY,LOWZ,HIGHX,HIGHY,HIGHZ in the coordinates of --world. A mesh takes the scene's
    inner box if not given."""
    resolution: int | None = None
    """Mesh: points of the density grid along the longest side of the box; 256 if not given."""
    threshold: float | None = None
    """Mesh: density of the surface, per normalised unit; chosen from what training rays meet if not given."""
    faces: int | None = None
    """Mesh: most triangles; 50000 if not given."""
    texture: int | None = None
    """Mesh: side of the texture in pixels; 2048 if not given, 0 for colours of vertices."""
    count: int | None = None
    """Splats and points: how many at most; 150000 splats or 500000 points if not given."""
    degree: int | None = None
    """Splats: degree of the spherical harmonics of their colour, 0 to 3; 2 if not given."""
    refine: int | None = None
    """Splats: steps of refinement against renderings of the field; 200 if not given, 0 for none."""
    longest: int | None = None
    """Splats and points: longer side in pixels of the views that are rendered for them; 400 if not given."""
    loader: bool = False
    """Snapshot: also write snapshot_loader.py beside it, which needs torch and safetensors alone."""
    time: float = 0.0
    """The moment, in 0 to 1, of a dynamic scene."""
    overwrite: bool = False
    """Replace the file if it exists."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The checkpoint to export; `best` is selected by the views of `raymine train --hold-out`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to evaluate the field on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def check(self) -> list[ExportOptions]:
        """The options of each file. `ConfigError` for those that no run has a use for."""
        from raymine.export.exporting import ExportOptions, options_of_each

        if not self.to:
            raise ConfigError("--to is missing.", hint="Give the file to write, such as --to model.glb.")
        if not 0 <= self.time <= 1:
            raise ConfigError(f"--time must be in 0 to 1, got {self.time}.")
        options = ExportOptions(
            self.format,
            self.world,
            parse_box(self.box),
            self.resolution,
            self.threshold,
            self.faces,
            self.texture,
            self.count,
            self.degree,
            self.refine,
            self.longest,
            self.loader,
            self.overwrite,
        )
        return options_of_each(self.to, options)

    def execute(self) -> int:
        started = time.perf_counter()
        from raymine.export.exporting import export_model

        each = self.check()
        loaded = open_run(self.run, checkpoint=self.checkpoint, device=self.device, allow=self.allow)
        ready = time.perf_counter()
        model = loaded.exportable(self.time)
        reports: list[ExportReport] = []
        for path, own in zip(self.to, each, strict=True):
            if len(self.to) > 1:
                output.say(f"{path.name}:")
            with stages() as progress, renamed_options({"out": "to"}):
                reports.append(export_model(model, path, own, progress))
            if not self.json:
                self._tell(reports[-1])
        ended = time.perf_counter()
        if self.json:
            found = {"run": self.run, "step": loaded.step, "world": self.world, "seconds": ended - started}
            output.emit_json({**found, "exports": [_as_json(report) for report in reports]})
        size = output.size(sum(report.size for report in reports))
        output.say(f"{size}, in the coordinates of the {'scene' if self.world == 'scene' else 'normalised world'}.")
        output.took(ended - started, {"exporting": ended - ready})
        return 0

    @staticmethod
    def _tell(report: ExportReport) -> None:
        for sentence in report.sentences:
            output.say(sentence)
        for file in report.files:
            output.results().print(str(file), markup=False, soft_wrap=True)


def _as_json(report: ExportReport) -> dict[str, Any]:
    numbers = {"size": report.size, "counts": report.counts, "checks": report.checks}
    return {"format": report.format, "files": report.files, **numbers, "seconds": report.seconds["all"]}


def parse_box(text: str | None) -> tuple[float, ...] | None:
    """`-1,-1,0,1,1,2` -> six numbers."""
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    finite = len(values) == 6 and all(map(math.isfinite, values))
    if not finite or not all(a < b for a, b in zip(values[:3], values[3:], strict=True)):
        raise ConfigError(
            f"--box must be six finite numbers LOWX,LOWY,LOWZ,HIGHX,HIGHY,HIGHZ with low < high, got {text[:80]!r}."
        )
    return values


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Show the stages of an export on stderr: a bar in a terminal, a line for each stage elsewhere."""
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    from raymine.progress_bar import ProgressBar

    console = output.messages()
    if console.is_terminal:
        bar = ProgressBar(console, MofNCompleteColumn(), TimeRemainingColumn())
        try:
            yield bar.show
        finally:
            bar.close()
        return
    told: set[str] = set()

    def tell(stage: str, done: int, total: int) -> None:
        if stage not in told:
            told.add(stage)
            output.say(stage)

    yield tell
