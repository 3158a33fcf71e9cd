"""Photos or a video to a scene folder, stage by stage. The same call continues an ingest that was stopped.

OUT/images/        upright pictures that have a pose        OUT/ingest.html   what became of every photo
OUT/sparse/0/      COLMAP's model: cameras, poses, points   OUT/ingest.json   the same as numbers; ingest.log
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from raymine._version import __version__
from raymine.errors import SceneError
from raymine.files import JSON, UnreadableFile, atomic_file, json_bytes, read_json
from raymine.machine import cores
from raymine.scenes import load_scene

from .config import IngestConfig, require_pycolmap
from .page import page
from .photos import Photo, groups_of, link_or_copy, write_upright
from .process import run_step
from .source import Skipped, Source, find_source, words_for
from .stages import Stages, fresh_folder, give_up, open_stages, publish, require_free, staging_of
from .verdict import Verdict, advice, judge
from .video import write_sharp_frames
from .worker import BLOCK

Progress = Callable[[int, int], None]
Reset = Callable[[], None]


class Listener(Protocol):
    """Is told what happens. Implementations print or count; all methods may do nothing."""

    def stage(self, words: str) -> Progress:
        """A stage begins; returns what is called with (done, total)."""

    def ended(self) -> None:
        """The stage has ended, or is left because of an error."""

    def say(self, sentence: str) -> None:
        """Something worth knowing."""

    def warn(self, sentence: str) -> None:
        """A file that is not used, or a choice that may surprise."""


class Silent:
    """A listener that does nothing."""

    def stage(self, words: str) -> Progress:
        return lambda done, total: None

    def ended(self) -> None: ...

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None: ...


@dataclass(frozen=True)
class Ingested:
    """A finished scene. seconds: by stage, of the process that did it. groups: photos of each reconstruction."""

    path: Path
    verdicts: tuple[Verdict, ...]
    skipped: tuple[Skipped, ...]
    points: int
    error: float
    groups: tuple[int, ...]
    seconds: dict[str, float]
    again: bool = False

    @property
    def registered(self) -> int:
        """Photos that have a pose."""
        return sum(verdict.registered for verdict in self.verdicts)

    def to_json(self) -> dict[str, JSON]:
        return {
            "scene": str(self.path),
            "registered": self.registered,
            "photos": len(self.verdicts),
            "points": self.points,
            "reprojection_error": self.error,
            "groups": list(self.groups),
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "advice": advice(self.verdicts, len(self.groups)),
            "images": [verdict.to_json() for verdict in self.verdicts],
            "skipped": [asdict(each) for each in self.skipped],
        }


def ingest(
    photos: Path, out: Path, config: IngestConfig | None = None, *, listener: Listener | None = None
) -> Ingested:
    """Compute poses of a folder of photos, or of frames of a video, and write a scene folder `out`.

    A call that was stopped continues where it was. If `out` is the finished result of the same photos and options, it
    is returned as it is. Anything else in `out` is refused and stays. `SceneError` if no poses can be found.
    """
    config = config or IngestConfig()
    told = listener or Silent()
    require_pycolmap()
    source = find_source(photos)
    done = _finished(out, source, config)
    if done is not None:
        return done
    require_free(out)
    with open_stages(out, source.digest) as stages:
        try:
            made = _Ingest(source, out, config, stages, told).run()
        except SceneError:
            give_up(stages.folder)
            raise
    shutil.rmtree(staging_of(out), ignore_errors=True)
    return made


class _Ingest:
    """One ingest in its staging folder."""

    def __init__(self, source: Source, out: Path, config: IngestConfig, stages: Stages, told: Listener) -> None:
        self.source, self.out, self.config, self.stages, self.told = source, out, config, stages, told
        self.images = stages.path("images")
        self.log = stages.path("ingest.log")
        self.threads = config.threads or cores()
        self.seconds: dict[str, float] = {}

    def run(self) -> Ingested:
        photos, skipped = self._pictures()
        for each in skipped:
            self.told.warn(f"{each.name} {each.why}")
        features = self._features(photos)
        pairs = self._matches(photos)
        models = self._models(photos)
        verdicts = judge(photos, features, pairs, models)
        if not models or len(models[0]["images"]) < 3:
            raise self._nothing_found(verdicts, skipped)
        if len(models) > 1:
            sizes = ", ".join(str(len(model["images"])) for model in models)
            self.told.warn(
                f"The photos fall into {len(models)} groups that nothing joins ({sizes} photos); the largest is kept."
            )
        return self._write_scene(verdicts, skipped, models)

    def _stage(
        self,
        name: str,
        options: dict[str, JSON],
        words: str,
        work: Callable[[Progress], JSON],
        reset: Reset | None = None,
    ) -> JSON:
        """The result of a stage, which is done if it was not finished before. options: those that it depends on.

        reset: removes what an earlier process did with other options. What it did with the same ones stays.
        """
        finished = self.stages.result(name, options)
        if finished is not None:
            self.seconds[name] = finished.seconds
            self.told.say(f"{words}: done before")
            return finished.result
        if reset is not None:
            self.stages.begin(name, reset)
        started = time.perf_counter()
        progress = self.told.stage(words)
        try:
            result = work(progress)
        finally:
            self.told.ended()
        self.seconds[name] = time.perf_counter() - started
        self.stages.finish(name, result, self.seconds[name])
        return result

    def _pictures(self) -> tuple[list[Photo], list[Skipped]]:
        """Upright pictures in the staging folder."""
        if self.source.video:
            words, work = f"Choosing {self.config.frames} sharp frames", self._write_frames
            result = self._stage("pictures", {"frames": self.config.frames}, words, work)
        else:
            result = self._stage("pictures", {}, f"Reading {len(self.source.files)} photos", self._write_photos)
        photos = [Photo(**each) for each in result["photos"]]
        skipped = [*self.source.skipped, *(Skipped(**each) for each in result["skipped"])]
        if len(photos) < 3:
            raise SceneError(
                f"Only {len(photos)} of the photos can be used; at least 3 are needed.", hint=words_for(skipped)
            )
        return photos, skipped

    def _write_frames(self, progress: Progress) -> JSON:
        folder = fresh_folder(self.images)
        photos = write_sharp_frames(self.source.path, self.config.frames, folder, progress=progress)
        return {"photos": [photo.to_json() for photo in photos], "skipped": []}

    def _write_photos(self, progress: Progress) -> JSON:
        folder = fresh_folder(self.images)
        photos, skipped, taken = [], [], set[str]()
        for done, file in enumerate(self.source.files, start=1):
            found = write_upright(file, folder, taken)
            if isinstance(found, Photo):
                photos.append(found.to_json())
            else:
                skipped.append(asdict(found))
            progress(done, len(self.source.files))
        return {"photos": photos, "skipped": skipped}

    def _job(self, **more: JSON) -> dict[str, JSON]:
        database = str(self.stages.path("database.db").absolute())
        return {"database": database, "images": str(self.images.absolute()), "threads": self.threads, **more}

    def _features(self, photos: Sequence[Photo]) -> dict[str, int]:
        options: dict[str, JSON] = {
            "model": self.config.model,
            "feature_size": self.config.feature_size,
            "robust": self.config.features == "robust",
        }
        groups = [_camera_of(group, self.config.model) for group in groups_of(photos).values()]
        job = self._job(groups=groups, **options)
        words = f"Finding features in {len(photos)} photos"
        return self._stage("features", options, words, self._step("features", job, len(photos)), self._remove_database)

    def _remove_database(self) -> None:
        for file in self.stages.folder.glob("database.db*"):
            file.unlink()

    def _matches(self, photos: Sequence[Photo]) -> list[tuple[str, str, int]]:
        how = self.config.matching_for(len(photos), self.source.video)
        words = "Matching every photo with every other" if how == "exhaustive" else "Matching photos with the next ones"
        count = len(photos)
        # COLMAP tells blocks of pairs, or photos; people count pairs, or photos.
        steps, shown = (
            (math.ceil(count / BLOCK) ** 2, count * (count - 1) // 2) if how == "exhaustive" else (count, count)
        )
        job = self._job(matching=how, robust=self.config.features == "robust")

        def step(progress: Progress) -> JSON:
            told: Progress = lambda done, _: progress(done * shown // steps, shown)  # noqa: E731
            return run_step("matches", job, self.log, total=steps, progress=told)

        result = self._stage("matches", {"matching": how}, words, step, self._remove_matches)
        return [(first, second, inliers) for first, second, inliers in result]

    def _remove_matches(self) -> None:
        with contextlib.closing(sqlite3.connect(self.stages.path("database.db"))) as database, database:
            database.execute("DELETE FROM matches")
            database.execute("DELETE FROM two_view_geometries")

    def _models(self, photos: Sequence[Photo]) -> list[dict[str, Any]]:
        work, model = self.stages.path("mapping").absolute(), self.stages.path("model").absolute()
        longest = max(max(photo.width, photo.height) for photo in photos)
        pixel = max(1.0, longest / self.config.feature_size)
        job = self._job(mapper=self.config.mapper, work=str(work), model=str(model), pixel=pixel)

        def compute(progress: Progress) -> JSON:
            fresh_folder(work)
            fresh_folder(model)
            return run_step("mapping", job, self.log, total=len(photos), progress=progress)

        return self._stage("mapping", {"mapper": self.config.mapper}, "Computing poses", compute)

    def _step(self, step: str, job: dict[str, JSON], total: int) -> Callable[[Progress], JSON]:
        return lambda progress: run_step(step, job, self.log, total=total, progress=progress)

    def _write_scene(
        self, verdicts: Sequence[Verdict], skipped: Sequence[Skipped], models: Sequence[dict[str, Any]]
    ) -> Ingested:
        started = time.perf_counter()
        progress = self.told.stage("Undistorting photos" if self.config.undistort else "Writing the scene")
        try:
            scene = self._assemble(verdicts)
            progress(1, 3)
            self._place(scene)
            progress(2, 3)
            self.seconds["scene"] = time.perf_counter() - started
            sizes = tuple(len(model["images"]) for model in models)
            made = Ingested(
                self.out,
                tuple(verdicts),
                tuple(skipped),
                models[0]["points"],
                models[0]["error"],
                sizes,
                dict(self.seconds),
            )
            self._write_page(scene, made, models[0]["cameras"])
            shutil.copyfile(self.log, scene / "ingest.log")
            progress(3, 3)
        finally:
            self.told.ended()
        publish(scene, self.out)
        return made

    def _assemble(self, verdicts: Sequence[Verdict]) -> Path:
        """The folder of the scene, without a name yet: pictures and model."""
        scene = fresh_folder(self.stages.path("scene"))
        model = self.stages.path("model")
        if self.config.undistort:
            flat = fresh_folder(self.stages.path("undistorted"))
            job = self._job(out=str(flat.absolute()), model=str(model.absolute()))
            run_step("undistort", job, self.log)
            shutil.copytree(flat / "images", scene / "images")
            shutil.copytree(flat / "sparse", scene / "sparse" / "0")
            return scene
        (scene / "images").mkdir()
        for verdict in verdicts:
            if verdict.registered:
                link_or_copy(self.images / verdict.photo.name, scene / "images" / verdict.photo.name)
        shutil.copytree(model, scene / "sparse" / "0")
        return scene

    def _place(self, scene: Path) -> None:
        """Turn, move and scale the world: up is +z, the subject is at the origin, cameras are about 1 away."""
        matrix = load_scene(scene).normalisation
        if np.isfinite(matrix).all():
            model = str((scene / "sparse" / "0").absolute())
            run_step("place", self._job(model=model, matrix=matrix.tolist()), self.log)

    def _write_page(self, scene: Path, made: Ingested, cameras: Sequence[dict[str, Any]]) -> None:
        facts = {
            "from": str(self.source.path),
            "scene points": f"{made.points}, {made.error:.2f} pixels mean reprojection error",
            "cameras": "; ".join(_camera_words(camera) for camera in cameras),
            "groups": ", ".join(f"{size} photos" for size in made.groups),
            "time": ", ".join(f"{name} {seconds:.0f} s" for name, seconds in made.seconds.items()),
            "raymine": __version__,
        }
        text = page(
            f"Poses of {self.source.path.name}",
            made.verdicts,
            made.skipped,
            facts,
            advice(made.verdicts, len(made.groups)),
            self.images,
        )
        with atomic_file(scene / "ingest.html", "write the page") as file:
            file.write(text.encode(errors="replace"))
        document = {
            "raymine": __version__,
            "input": self.source.digest,
            "options": _options(self.config),
            "cameras": list(cameras),
            **made.to_json(),
        }
        with atomic_file(scene / "ingest.json", "write the numbers") as file:
            file.write(json_bytes(document))

    def _nothing_found(self, verdicts: Sequence[Verdict], skipped: Sequence[Skipped]) -> SceneError:
        """The error for photos without poses. The page is written beside the scene that there is not."""
        blurred = sum(any("blurred" in why for why in verdict.why) for verdict in verdicts)
        lonely = sum(verdict.neighbours == 0 for verdict in verdicts)
        what = f"{lonely} of {len(verdicts)} photos match no other one"
        if not lonely:
            what = "They match, but the camera seems not to have moved between them"
        target = self.out.with_name(f"{self.out.name}-ingest.html")
        text = page(
            f"No poses for {self.source.path.name}",
            verdicts,
            skipped,
            {"from": str(self.source.path)},
            advice(verdicts, 0),
            self.images,
        )
        with atomic_file(target, "write the page") as file:
            file.write(text.encode(errors="replace"))
        return SceneError(
            f"No poses could be computed from {len(verdicts)} photos of {self.source.path}. {what}"
            f"{f'; {blurred} are blurred' if blurred else ''}.",
            hint="Walk around the subject, and let neighbouring photos share two thirds of the picture. "
            f"{target} shows each photo with what is wrong.",
        )


def _camera_of(group: Sequence[Photo], model: str) -> JSON:
    first = group[0]
    return {
        "names": [photo.name for photo in group],
        "model": model,
        "width": first.width,
        "height": first.height,
        "focal": first.focal,
    }


def _camera_words(camera: dict[str, Any]) -> str:
    size = f"{camera['width']}x{camera['height']}"
    return f"{camera['model']} {size}, focal length {camera['params'][0]:.0f} pixels"


def _options(config: IngestConfig) -> dict[str, JSON]:
    """Options that change the result."""
    return {name: value for name, value in asdict(config).items() if name != "threads"}


def _finished(out: Path, source: Source, config: IngestConfig) -> Ingested | None:
    """The scene of an earlier call with the same photos and options; None if there is none."""
    try:
        found = read_json(out / "ingest.json")
        if not (out / "sparse" / "0").is_dir() or found["input"] != source.digest:
            return None
        if found["options"] != _options(config):
            return None
        verdicts = []
        for each in found["images"]:
            fields = {**each, "photo": Photo(**each["photo"]), "why": tuple(each["why"]), "hints": tuple(each["hints"])}
            verdicts.append(Verdict(**fields))
        skipped = tuple(Skipped(**each) for each in found["skipped"])
        return Ingested(
            out,
            tuple(verdicts),
            skipped,
            found["points"],
            found["reprojection_error"],
            tuple(found["groups"]),
            found["seconds"],
            again=True,
        )
    except (UnreadableFile, KeyError, TypeError):
        return None
