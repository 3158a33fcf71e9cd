"""`ingest` from photos to a scene: with COLMAP on rendered photos, and with steps that stand for COLMAP's."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raymine.cameras import pose_errors
from raymine.errors import ConfigError, SceneError
from raymine.ingestion import IngestConfig, ingest, run
from raymine.ingestion.run import Silent
from raymine.ingestion.stages import staging_of
from raymine.scenes import load_scene
from support.textured_room import photo, poses, write_photos

pytest.importorskip("pycolmap")
FAST = IngestConfig(features="fast", feature_size=400)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, np.ndarray]:
    """Photos of a corner of a room, the scene that ingest made of them, and true poses. Two photos show nothing."""
    folder = tmp_path_factory.mktemp("room")
    truth = write_photos(folder / "photos", 6)
    rng = np.random.default_rng(0)
    for i in range(2):
        noise = np.repeat(np.repeat(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8), 10, 0), 10, 1)
        run_image(noise).save(folder / "photos" / f"zz_{i}.png")
    (folder / "photos" / "other.heic").write_bytes(b"?")
    ingest(folder / "photos", folder / "scene", FAST)
    return folder / "photos", folder / "scene", truth


def run_image(pixels: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(pixels)


def test_poses_are_found_and_the_scene_is_sound(room: tuple[Path, Path, np.ndarray]) -> None:
    _, scene, truth = room
    loaded = load_scene(scene)
    assert not loaded.warnings
    assert [frame.image.name for frame in loaded.frames] == [f"view_{i:02d}.jpg" for i in range(6)]
    errors = pose_errors(np.stack([frame.pose for frame in loaded.frames]), truth)
    assert errors.distance.max() < 0.02, "1 % of the room"
    assert errors.degrees.max() < 0.5
    # The world is upright and of unit size, so that loading it again changes nothing.
    assert np.allclose(loaded.normalisation, np.eye(4), atol=0.02)
    assert {frame.split for frame in loaded.frames} == {"train", "test"}


def test_page_and_numbers_say_what_has_no_pose(room: tuple[Path, Path, np.ndarray]) -> None:
    _, scene, _ = room
    numbers = json.loads((scene / "ingest.json").read_text())
    assert (numbers["registered"], numbers["photos"]) == (6, 8)
    lost = [image for image in numbers["images"] if not image["registered"]]
    assert [image["photo"]["name"] for image in lost] == ["zz_0.png", "zz_1.png"]
    assert all("too little overlap" in " ".join(image["why"]) for image in lost)
    assert [each["name"] for each in numbers["skipped"]] == ["other.heic"]
    page = (scene / "ingest.html").read_text()
    assert "6 of 8 photos have a pose" in page
    assert "zz_0.png" in page
    assert "other.heic" in page
    assert sorted(path.name for path in scene.iterdir()) == [
        "images",
        "ingest.html",
        "ingest.json",
        "ingest.log",
        "sparse",
    ]
    assert not staging_of(scene).exists()


def test_finished_scene_is_returned_and_other_content_is_refused(
    room: tuple[Path, Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, scene, _ = room
    monkeypatch.setattr(run, "run_step", lambda *_, **__: pytest.fail("done again"))
    again = ingest(photos, scene, FAST)
    assert again.again
    assert again.registered == 6
    before = {path: path.stat().st_mtime_ns for path in scene.rglob("*")}
    with pytest.raises(ConfigError, match="not changed"):
        ingest(photos, scene, IngestConfig(mapper="global"))
    others = tmp_path / "others"
    for i in range(3):
        others.mkdir(exist_ok=True)
        run_image(np.full((80, 90, 3), 60 * i, np.uint8)).save(others / f"{i}.png")
    with pytest.raises(ConfigError, match="not changed"):
        ingest(others, scene, FAST)
    assert {path: path.stat().st_mtime_ns for path in scene.rglob("*")} == before


class FakeColmap:
    """Stands for `run_step`. Raises once at step `fails`; `models` are what mapping finds."""

    def __init__(self, model: Path, fails: str | None = None, models: list[dict[str, Any]] | None = None) -> None:
        self.model, self.fails, self.models = model, fails, models
        self.steps: list[str] = []

    def __call__(self, step: str, job: dict[str, Any], log: Path, **_: object) -> Any:
        self.steps.append(step)
        log.touch()
        if step == "features":
            with sqlite3.connect(job["database"]) as database:
                for table in ("matches", "two_view_geometries"):
                    database.execute(f"CREATE TABLE IF NOT EXISTS {table} (pair_id INTEGER)")
            database.close()
        if step == self.fails:
            self.fails = None
            raise KeyboardInterrupt
        names = sorted(path.name for path in Path(job["images"]).iterdir())
        if step == "features":
            return dict.fromkeys(names, 500)
        if step == "matches":
            return [[a, b, 50] for a in names for b in names if a < b]
        if step == "mapping":
            if self.models is not None:
                return self.models
            shutil.copytree(self.model, job["model"], dirs_exist_ok=True)
            found = {f"view_{i:02d}.jpg": 9 for i in range(6)}
            return [{"images": found, "points": 99, "error": 0.5, "cameras": []}]
        return True


@pytest.mark.parametrize("step", ["features", "matches", "mapping", "place"])
def test_stopped_ingest_continues_with_the_stage_it_was_in(
    room: tuple[Path, Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    photos, scene, _ = room
    colmap = FakeColmap(scene / "sparse" / "0", fails=step)
    monkeypatch.setattr(run, "run_step", colmap)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        ingest(photos, out, FAST)
    assert not out.exists()
    ingest(photos, out, FAST)
    order = ["features", "matches", "mapping", "place"]
    assert colmap.steps == [*order[: order.index(step) + 1], *order[order.index(step) :]]
    assert load_scene(out).frames
    assert not staging_of(out).exists()


def test_other_options_repeat_only_what_depends_on_them(
    room: tuple[Path, Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, scene, _ = room
    colmap = FakeColmap(scene / "sparse" / "0", fails="place")
    monkeypatch.setattr(run, "run_step", colmap)
    with pytest.raises(KeyboardInterrupt):
        ingest(photos, tmp_path / "out", FAST)
    colmap.steps.clear()
    ingest(photos, tmp_path / "out", IngestConfig(features="fast", feature_size=400, mapper="global"))
    assert colmap.steps == ["mapping", "place"]


class Told(Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


def test_largest_of_several_groups_is_kept_and_said(
    room: tuple[Path, Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, scene, _ = room
    colmap = FakeColmap(scene / "sparse" / "0")
    larger = {"images": {f"view_{i:02d}.jpg": 9 for i in range(6)}, "points": 9, "error": 0.5, "cameras": []}
    smaller = {**larger, "images": {"zz_0.png": 3, "zz_1.png": 3}}

    def step(name: str, job: dict[str, Any], log: Path, **more: object) -> Any:
        found = colmap(name, job, log, **more)
        return [larger, smaller] if name == "mapping" else found

    monkeypatch.setattr(run, "run_step", step)
    told = Told()
    made = ingest(photos, tmp_path / "out", FAST, listener=told)
    assert made.groups == (6, 2)
    assert any("2 groups" in warning and "largest is kept" in warning for warning in told.warnings)
    assert any(warning.startswith("other.heic") for warning in told.warnings)
    assert "group 2" in (tmp_path / "out" / "ingest.html").read_text()


def test_photos_that_cannot_be_posed_are_an_error_with_a_page(
    room: tuple[Path, Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, scene, _ = room
    monkeypatch.setattr(run, "run_step", FakeColmap(scene, models=[]))
    with pytest.raises(SceneError, match="No poses could be computed from 8 photos") as caught:
        ingest(photos, tmp_path / "out", FAST)
    page = tmp_path / "out-ingest.html"
    assert str(page) in caught.value.hint
    assert "0 of 8 photos have a pose" in page.read_text()
    assert not (tmp_path / "out").exists()


def test_photos_from_one_place_are_an_error_of_their_own(tmp_path: Path) -> None:
    """With COLMAP: pictures that differ by noise alone give no depth."""
    view = np.asarray(photo(poses(3)[1])).astype(int)
    (tmp_path / "photos").mkdir()
    for i in range(3):
        noise = np.random.default_rng(i).integers(-4, 5, view.shape)
        run_image((view + noise).clip(0, 255).astype(np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    with pytest.raises(SceneError, match="seems not to have moved"):
        ingest(tmp_path / "photos", tmp_path / "out", FAST)
