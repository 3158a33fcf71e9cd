"""Export a trained model to a file: the format by its suffix, checks before the work, verification after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from raymine.errors import ConfigError, did_you_mean, option
from raymine.files import obstacle, resource_error

from .mesh.extract import Mesh, MeshConfig
from .model import Box, ExportModel, Placement, Progress, World, box_of, no_progress
from .points import PointsConfig
from .splats.place import SplatConfig

ExportFormat = Literal["mesh", "splats", "points", "page", "snapshot", "onnx"]

_OF_SUFFIX: dict[str, tuple[ExportFormat, ...]] = {
    ".glb": ("mesh",),
    ".obj": ("mesh",),
    ".ply": ("mesh", "splats", "points"),
    ".html": ("page",),
    ".safetensors": ("snapshot",),
    ".onnx": ("onnx",),
}
"""The formats that a suffix may have. A .ply may be three things, so it needs to be said which."""


_SPLATS = ("count", "degree", "refine", "longest", "box")
_TAKES: dict[ExportFormat, tuple[str, ...]] = {
    "mesh": ("resolution", "threshold", "faces", "texture", "box"),
    "splats": _SPLATS,
    "page": _SPLATS,
    "points": ("count", "longest", "box"),
    "snapshot": ("loader",),
    "onnx": (),
}
"""The options of each format, besides those of all."""


@dataclass(frozen=True)
class ExportOptions:
    """What to export and how. None stands for the default of the format.

    format: where the suffix does not say it. box: six numbers, low x y z and high x y z, in `world`; None is the inner
    box of the scene for a mesh, and everything that cameras see for points and splats. world: coordinates of the file
    and of the box, "scene" (those of the scene's own files) or "normalised" (raymine's). loader: copy the loader of a
    snapshot next to it. overwrite: replace existing files. count: of splats or points. The others are those of
    `MeshConfig` and `SplatConfig`.
    """

    format: ExportFormat | None = None
    world: World = "scene"
    box: tuple[float, ...] | None = None
    resolution: int | None = None
    threshold: float | None = None
    faces: int | None = None
    texture: int | None = None
    count: int | None = None
    degree: int | None = None
    refine: int | None = None
    longest: int | None = None
    loader: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in get_args(ExportFormat):
            meant = did_you_mean(str(self.format), get_args(ExportFormat))
            raise ConfigError(f"{option('format')} must be one of {', '.join(get_args(ExportFormat))}.{meant}")
        if self.world not in get_args(World):
            raise ConfigError(f"{option('world')} must be scene or normalised, got {self.world!r}.")


@dataclass(frozen=True)
class ExportReport:
    """What was written: the files and their size in bytes, and how it compares with the model once read back.

    counts: of faces, splats, ... checks: measured numbers. sentences: both, in words. seconds: of the stages.
    """

    format: ExportFormat
    files: tuple[Path, ...]
    size: int
    counts: dict[str, int]
    checks: dict[str, float]
    sentences: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


def format_of(path: Path, options: ExportOptions) -> ExportFormat:
    """The format of a file: the one that was asked for, or that of the suffix. `ConfigError` if they do not agree."""
    suffix = path.suffix.lower()
    fitting = _OF_SUFFIX.get(suffix, ())
    known = ", ".join(_OF_SUFFIX)
    if not fitting:
        raise ConfigError(
            f"{path}: {suffix if suffix else 'no suffix'} is not a format to export to.",
            hint=f"Give a file name that ends in {known}.",
        )
    if options.format is None:
        if len(fitting) > 1:
            raise ConfigError(
                f"A {suffix} file may hold {', '.join(fitting[:-1])} or {fitting[-1]}.",
                hint=f"Say which: {option('format', fitting[0])}, {option('format', fitting[1])}, ...",
            )
        return fitting[0]
    if options.format not in fitting:
        suffixes = [each for each, formats in _OF_SUFFIX.items() if options.format in formats]
        raise ConfigError(f"{options.format} is written to {' or '.join(suffixes)}, not to {suffix} ({path}).")
    return options.format


def require_target(path: Path, kind: ExportFormat, options: ExportOptions) -> None:
    """Raise `ConfigError`, before any work, if a file cannot be written or exists and may not be replaced."""
    from .mesh.write import files_of

    fault = obstacle(path, folder=False)
    if fault:
        raise ConfigError(f"{path} {fault}; an export needs a file name.")
    targets = files_of(path) if kind == "mesh" else (path,)
    if options.loader and kind == "snapshot":
        targets = (path, path.parent / "snapshot_loader.py")
    there = [target for target in targets if target.exists()]
    if there and not options.overwrite:
        raise ConfigError(
            f"{there[0]} exists.", hint=f"Give another name, or replace it with {option('overwrite', True)}."
        )


def require_sense(kind: ExportFormat, options: ExportOptions) -> None:
    """Raise `ConfigError` for an option that the format does not have."""
    for name in _chosen(options):
        if name not in _TAKES[kind]:
            raise ConfigError(f"{option(name)} means nothing for the format {kind}.")


def _chosen(options: ExportOptions) -> list[str]:
    """The options that belong to some formats alone and were given."""
    names = dict.fromkeys(name for each in _TAKES.values() for name in each)
    return [name for name in names if getattr(options, name) not in (None, False)]


def options_of_each(paths: Sequence[Path], options: ExportOptions) -> list[ExportOptions]:
    """The options for each of several files: each takes those that its format has.

    `format` is for the files whose suffix leaves it open. `ConfigError` for an option that no file takes, for a file
    that is named twice, and for everything that `prepare` refuses. With one file it takes all options.
    """
    if len(paths) == 1:
        prepare(paths[0], options)
        return [options]
    if doubled := [path for path in paths if paths.count(path) > 1]:
        raise ConfigError(f"{doubled[0]} is named twice in {option('to')}.")
    opened = [path for path in paths if options.format in _OF_SUFFIX.get(path.suffix.lower(), ())]
    if options.format is not None and not opened:
        format_of(paths[0], options)
    left, found = set(_chosen(options)), []
    for path in paths:
        asked = replace(options, format=options.format if path in opened else None)
        kind = format_of(path, asked)
        takes = set(_TAKES[kind])
        if kind == "mesh" and path.suffix.lower() == ".ply":
            takes.discard("texture")
        left -= takes
        unset: dict[str, Any] = {name: False if name == "loader" else None for name in _chosen(options)}
        own = replace(asked, **{name: value for name, value in unset.items() if name not in takes})
        prepare(path, own)
        found.append(own)
    for name in sorted(left):
        raise ConfigError(f"{option(name)} means nothing for any of {', '.join(path.name for path in paths)}.")
    return found


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def prepare(path: Path, options: ExportOptions) -> tuple[ExportFormat, MeshConfig | SplatConfig | PointsConfig | None]:
    """The format of an export and its config; everything that can be refused before the model is loaded is."""
    kind = format_of(path, options)
    require_sense(kind, options)
    config: MeshConfig | SplatConfig | PointsConfig | None = None
    if kind == "mesh":
        o = options
        given = _given(resolution=o.resolution, threshold=o.threshold, faces=o.faces, texture=o.texture)
        if path.suffix.lower() == ".ply" and not o.texture:
            # A PLY has no place for a texture.
            given["texture"] = 0
        config = MeshConfig(**given)
        if path.suffix.lower() == ".ply" and config.texture:
            raise ConfigError(f"A .ply holds colours of vertices, no texture; leave out {option('texture')}.")
    elif kind in ("splats", "page"):
        o = options
        config = SplatConfig(**_given(count=o.count, degree=o.degree, refine=o.refine, longest=o.longest))
    elif kind == "points":
        config = PointsConfig(**_given(count=options.count, longest=options.longest))
    require_target(path, kind, options)
    return kind, config


def export_model(
    model: ExportModel, path: Path, options: ExportOptions, progress: Progress = no_progress
) -> ExportReport:
    """Export a model to `path`, read the file back and compare it with the model.

    `ConfigError` for options or a path that cannot work, `RunError` for a field without anything in it; no file is
    written or changed then. The folder of `path` is made if it is missing.
    """
    started = time.perf_counter()
    kind, config = prepare(path, options)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise resource_error(error, "make the folder of the export", path.parent) from error
    if kind == "mesh":
        assert isinstance(config, MeshConfig)
        made = _mesh(model, path, options, config, progress)
    elif kind in ("splats", "page"):
        assert isinstance(config, SplatConfig)
        made = _splats(model, path, options, config, kind, progress)
    elif kind == "points":
        assert isinstance(config, PointsConfig)
        made = _points(model, path, options, config, progress)
    else:
        made = _network(model, path, options, kind)
    files, counts, checks, sentences = made
    seconds = {"all": time.perf_counter() - started}
    size = sum(file.stat().st_size for file in files)
    return ExportReport(kind, files, size, counts, checks, sentences, seconds)


_Made = tuple[tuple[Path, ...], dict[str, int], dict[str, float], tuple[str, ...]]


def _mesh(model: ExportModel, path: Path, options: ExportOptions, config: MeshConfig, progress: Progress) -> _Made:
    from .mesh import check, extract, texture, write

    for module in ("trimesh", "skimage.measure", "fast_simplification", *(("xatlas",) if config.texture else ())):
        extract.require(module)
    box = box_of(model.scene, options.box, options.world)
    whole, cell, density = _surface(model, box, config, progress)
    mesh = extract.decimate(whole, config.faces, progress)
    if config.texture:
        mesh = texture.with_texture(mesh, model, config.texture, progress)
    else:
        mesh = texture.with_vertex_colours(mesh, model, progress)
    placement = Placement.of(model.scene, options.world)
    files = write.write_mesh(path, write.placed(mesh, placement))
    found = check.check_mesh(path, model, placement, box, cell)
    counts = {"vertices": len(mesh.vertices), "faces": len(mesh.faces), "faces_before": len(whole.faces)}
    checks = {"near": found.near, "distance_cells": found.distance, "covered": found.covered}
    if density is None:
        where = "that training views see"
    else:
        checks["threshold"] = density
        chosen = ", chosen from the training rays" if config.threshold is None else ""
        where = f"at density {density:.3g} per unit{chosen}"
    said = [
        f"{len(mesh.faces)} faces (of {len(whole.faces)}), of the surface {where}.",
        f"Read back and drawn from training views: it covers {found.covered:.1%} of what the field shows in the box; "
        f"{found.near:.1%} of that has the field's depth, on average within {found.distance:.2f} cells of the grid.",
    ]
    if found.psnr is not None:
        checks["psnr"] = found.psnr
        said.append(f"Pictures of the mesh against the field's own: PSNR {found.psnr:.2f} dB.")
    return files, counts, checks, tuple(said)


def _surface(model: ExportModel, box: Box, config: MeshConfig, progress: Progress) -> tuple[Mesh, float, float | None]:
    """The surface with all its faces, the side of the grid's cells, and its density if it is a level of that.

    Fused depths are for fuzzy fields, such as those of a few photos of a room. A sharp field has thin things that its
    density keeps and fused depths lose: the pictures of the built-in scene's mesh fell from 27.1 to 23.9 dB.
    """
    from .mesh import carve, extract, fuse

    if config.threshold is None and model.scene.bounds.unbounded:
        grid = fuse.fuse(model, box, config.resolution, progress)
        return extract.extract(grid, 0.0, progress=progress), grid.cell, None
    chosen = config.threshold is None
    level = extract.choose_threshold(model, box) if chosen else extract.raw_of(model, config.threshold or 0.0)
    grid = extract.sample_grid(model, box, config.resolution, progress)
    seen = carve.seen_empty(model, box, grid.values.shape, grid.cell, progress)
    density = float(extract.activations_of(model.field).density(torch.tensor(level)))
    return extract.extract(grid, level, seen, progress), grid.cell, density


def _splats(
    model: ExportModel, path: Path, options: ExportOptions, config: SplatConfig, kind: ExportFormat, progress: Progress
) -> _Made:
    from .splats import check, page, place, record, refine

    box = None if options.box is None else box_of(model.scene, options.box, options.world)
    views, surface = place.trace_views(model, box, config.views, config.longest, progress)
    with single_thread():
        splats = place.place(model, surface, config, progress)
        before = check.splat_psnr(splats, views)
        if config.refine:
            splats = refine.refine(splats, views, config.refine, progress)
        placement = Placement.of(model.scene, options.world)
        if kind == "page":
            back = page.write_page(path, splats, model.scene, placement)
        else:
            record.write_splats(path, splats.placed(placement))
            back = record.read_splats(path)
        inverse = Placement(np.linalg.inv(placement.matrix))
        after = check.splat_psnr(back.placed(inverse), views)
    size = f"{views[0].camera.width} x {views[0].camera.height}"
    counts = {"splats": len(splats), "degree": splats.degree, "views": len(views)}
    said = (
        f"{len(splats)} splats of degree {splats.degree}, from {len(views)} training views.",
        f"Read back and drawn against the field's own renderings at {size}: PSNR {after:.2f} dB"
        + (f" ({before:.2f} dB as placed, before {config.refine} steps of refinement)." if config.refine else "."),
    )
    return (path,), counts, {"psnr": after, "psnr_as_placed": before}, said


def _points(model: ExportModel, path: Path, options: ExportOptions, config: PointsConfig, progress: Progress) -> _Made:
    from . import points
    from .splats.place import trace_views

    box = None if options.box is None else box_of(model.scene, options.box, options.world)
    _, surface = trace_views(model, box, config.views, config.longest, progress)
    made = points.make_points(model, surface, config.count)
    placement = Placement.of(model.scene, options.world)
    points.write_points(path, made, placement)
    back = points.read_points(path)
    inside = model.occupied(torch.from_numpy(placement.back(back.points)).float().to(model.device))
    share = float(inside.float().mean())
    moved = float(np.abs(placement.back(back.points) - made.points).max())
    said = (
        f"{len(made.points)} points with normals and colours.",
        f"Read back: {share:.1%} of the points lie in occupied cells; rounding moved them by at most {moved:.1e}.",
    )
    return (path,), {"points": len(made.points)}, {"occupied": share, "moved": moved}, said


def _network(model: ExportModel, path: Path, options: ExportOptions, kind: ExportFormat) -> _Made:
    from . import onnx_file, snapshot

    if kind == "snapshot":
        files = snapshot.write_snapshot(path, model, loader=options.loader)
        worst = snapshot.check_snapshot(path, model)
        precision = "The table is stored " + snapshot.precision_of(path) + "."
    else:
        onnx_file.write_onnx(path, model)
        files, worst, precision = (path,), onnx_file.check_onnx(path, model), "All in single precision."
    verdict = "" if worst < snapshot.CLOSE else f", which is more than {snapshot.CLOSE}"
    said = (f"Read back: pre-activations differ from the model's by at most {worst:.1e}{verdict}.", precision)
    return files, {}, {"difference": worst}, said


class single_thread:
    """Within the block, torch uses one thread: on shared cores, two made operations on splats 10 times slower."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)
