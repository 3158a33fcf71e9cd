"""The choice of a format, refusals before the work, and reports of what was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raymine.contracts import Bounds
from raymine.errors import ConfigError, RunError
from raymine.export.exporting import ExportOptions, export_model, format_of, options_of_each, prepare
from support.export_models import TURNED, DistanceField, ball, ball_model, empty_model, hash_model, model_of


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [("a.glb", None, "mesh"), ("a.PLY", "splats", "splats"), ("a.html", None, "page"), ("a.onnx", None, "onnx")],
)
def test_format_follows_from_the_suffix(name: str, asked: str | None, found: str) -> None:
    assert format_of(Path(name), ExportOptions(format=asked)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.ply", {}, "may hold mesh, splats or points"),
        ("a.stl", {}, ".stl is not a format"),
        ("a", {}, "no suffix is not a format"),
        ("a.glb", {"format": "splats"}, "splats is written to .ply, not to .glb"),
        ("a.glb", {"format": "mehs"}, "Did you mean `mesh`"),
        ("a.glb", {"count": 3}, "`count` means nothing for the format mesh"),
        ("a.onnx", {"box": (0, 0, 0, 1, 1, 1)}, "`box` means nothing"),
        ("a.ply", {"format": "mesh", "texture": 128}, "no texture"),
        ("a.glb", {"world": "mine"}, "must be scene or normalised"),
        ("a.glb", {"faces": 1}, "`faces` must be between"),
        ("there.glb", {}, "there.glb exists"),
        ("folder.glb", {"overwrite": True}, "is a folder"),
    ],
)
def test_what_cannot_work_is_refused_before_the_work(
    tmp_path: Path, name: str, options: dict[str, object], words: str
) -> None:
    (tmp_path / "there.glb").write_text("mine")
    (tmp_path / "folder.glb").mkdir()
    with pytest.raises(ConfigError, match=words):
        prepare(tmp_path / name, ExportOptions(**options))  # type: ignore[arg-type]
    assert (tmp_path / "there.glb").read_text() == "mine"


def test_each_of_several_files_takes_the_options_of_its_format(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.glb", "a.ply", "a.html", "a.safetensors")]
    asked = ExportOptions("splats", box=(0, 0, 0, 1, 1, 1), faces=500, count=20, loader=True, overwrite=True)
    plain = ExportOptions(overwrite=True)
    mesh, splats, page, snapshot = options_of_each(paths, asked)
    assert mesh == replace(plain, box=asked.box, faces=500)
    assert splats == replace(plain, format="splats", box=asked.box, count=20)
    assert page == replace(splats, format=None)
    assert snapshot == replace(plain, loader=True)
    both = options_of_each([tmp_path / "b.glb", tmp_path / "b.ply"], ExportOptions("mesh", texture=64))
    assert [each.texture for each in both] == [64, None]


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (("a.glb", "b.ply"), {}, "may hold mesh, splats or points"),
        (("a.glb", "b.onnx"), {"format": "splats"}, "splats is written to .ply, not to .glb"),
        (("a.glb", "b.onnx"), {"count": 3}, "`count` means nothing for any of a.glb, b.onnx"),
        (("a.glb", "a.glb"), {}, "a.glb is named twice"),
        (("a.glb", "there.onnx"), {}, "there.onnx exists"),
        (("a.glb", "b.stl"), {}, ".stl is not a format"),
    ],
)
def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, names: tuple[str, ...], options: dict[str, object], words: str
) -> None:
    (tmp_path / "there.onnx").write_text("mine")
    with pytest.raises(ConfigError, match=words):
        options_of_each([tmp_path / name for name in names], ExportOptions(**options))  # type: ignore[arg-type]


def test_obj_does_not_replace_a_file_of_its_material(tmp_path: Path) -> None:
    (tmp_path / "a.mtl").write_text("mine")
    with pytest.raises(ConfigError, match=r"a.mtl exists"):
        prepare(tmp_path / "a.obj", ExportOptions())


@pytest.mark.parametrize(("name", "longest"), [("a.glb", None), ("a.html", 16)])
def test_empty_field_is_refused_and_nothing_written(tmp_path: Path, name: str, longest: int | None) -> None:
    with pytest.raises(RunError, match="The field is empty"):
        export_model(empty_model(), tmp_path / name, ExportOptions(longest=longest))
    assert not list(tmp_path.iterdir())


def test_reports_of_all_formats(tmp_path: Path) -> None:
    model = ball_model(TURNED)
    stages: list[str] = []
    mesh = export_model(
        model,
        tmp_path / "a.glb",
        ExportOptions(resolution=32, faces=400, texture=64),
        lambda stage, done, total: stages.append(stage),
    )
    assert mesh.checks["near"] > 0.99
    assert mesh.checks["covered"] > 0.9
    assert mesh.checks["psnr"] > 15
    assert "Sampling density" in stages
    splats = export_model(
        model, tmp_path / "a.ply", ExportOptions("splats", count=1000, degree=1, refine=0, longest=40)
    )
    assert splats.checks["psnr"] == pytest.approx(splats.checks["psnr_as_placed"], abs=0.01)
    points = export_model(model, tmp_path / "b.ply", ExportOptions("points", count=300, longest=40))
    assert points.counts["points"] <= 300
    page = export_model(
        model, tmp_path / "a.html", ExportOptions(count=1000, degree=1, refine=0, longest=40, world="normalised")
    )
    assert page.checks["psnr"] == pytest.approx(splats.checks["psnr"], abs=0.5)
    for name in ("a.safetensors", "a.onnx"):
        assert export_model(hash_model(), tmp_path / name, ExportOptions()).checks["difference"] < 1e-3


def test_unbounded_scene_becomes_the_surface_that_its_views_see(tmp_path: Path) -> None:
    bounds = Bounds((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0), levels=2, near=0.05, far=8.0)
    model = model_of(DistanceField(ball), bounds=bounds)
    stages: set[str] = set()
    options = ExportOptions(resolution=48, faces=1000, texture=64)
    report = export_model(model, tmp_path / "a.glb", options, lambda stage, done, total: stages.add(stage))
    assert "Fusing depths" in stages
    assert "threshold" not in report.checks
    assert report.checks["near"] > 0.99
    assert report.checks["covered"] > 0.9
    level = replace(options, threshold=50.0, overwrite=True)
    assert export_model(model, tmp_path / "a.glb", level).checks["threshold"] == pytest.approx(50.0, rel=1e-3)


def test_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "field.safetensors"
    assert export_model(hash_model(), path, ExportOptions()).files == (path,)
    assert path.is_file()
