"""The tasks of a pipeline: one for each stage of each scene, their keys, and the records of those that are done."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from raymine._version import __version__
from raymine.files import JSON, UnreadableFile, read_json, write_json
from raymine.rundir.manifest import source_digest

from .spec import Pipeline, SceneSpec
from .stages import STAGES, OwnStage, Result, Site, Stage, digest_of, stamp

Verdict = Literal["run", "skip"]


@dataclass(frozen=True)
class Record:
    """What is known of a stage that was finished: its key, the digests that the key is made of, and its result.

    products: stamps of the files that it made. seconds: how long it took.
    """

    key: str
    parts: dict[str, str]
    result: Result
    products: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """A stage of a scene. needs: names of the stages of this scene that must be done before it."""

    scene: SceneSpec
    stage: Stage | OwnStage
    needs: tuple[str, ...]
    folder: Path

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def record_file(self) -> Path:
        return record_file(self.folder, self.name)

    @property
    def log(self) -> Path:
        """What the stage wrote to stderr."""
        return self.folder / "logs" / f"{self.name}.log"

    def parts(self, results: Mapping[str, Result], code: str) -> dict[str, str]:
        """The digests that make the key, by what they are of."""
        site = Site(self.scene, self.folder, results)
        if isinstance(self.stage, OwnStage):
            options: JSON = list(self.stage.command)
            # The result of `check` is its warnings alone: the key of a stage says what it was made from.
            needs = [(need, _read_record(self.folder, need), results[need]) for need in self.stage.needs]
            uses: JSON = [
                {need: [record and record.key, result] for need, record, result in needs},
                [stamp(path) for path in self.stage.inputs],
            ]
        else:
            options = [self.scene.options.get(self.name, {}), self.scene.downscale]
            uses = self.stage.uses(site)
        return {"options": digest_of(options), "inputs": digest_of(uses), "code": digest_of(code)}

    def record(self) -> Record | None:
        """The record of this stage; None if it was never finished, or the record cannot be read."""
        return _read_record(self.folder, self.name)

    def decide(self, parts: dict[str, str]) -> tuple[Verdict, str]:
        """Whether the stage must run, and why. parts: those of now."""
        found = self.record()
        if found is None:
            return "run", "it has not been finished yet"
        changed = [name for name, digest in parts.items() if found.parts.get(name) != digest]
        if changed:
            return "run", f"its {' and '.join(changed)} changed"
        lost = [path for path, old in found.products.items() if stamp(Path(path)) != old]
        if lost:
            return "run", f"{lost[0]} was changed or removed"
        return "skip", "nothing changed"

    def site(self, results: Mapping[str, Result], parts: dict[str, str]) -> Site:
        return Site(self.scene, self.folder, results, digest_of(parts)[:10])

    def finish(self, results: Mapping[str, Result], parts: dict[str, str], printed: JSON, seconds: float) -> Record:
        """Record that the stage is done. parts: those of when it began. printed: the JSON that it printed, or None."""
        site = self.site(results, parts)
        result: Result = {"key": digest_of(parts)}
        products: list[Path] = []
        if isinstance(self.stage, Stage):
            result = self.stage.result(site, printed if isinstance(printed, dict) else {})
            done = replace(site, results={**results, self.name: result})
            products = self.stage.products(done)
        stamps = {str(path): stamp(path) for path in products}
        record = Record(digest_of(parts), parts, result, stamps, seconds)
        self.record_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.record_file, asdict(record), "record the stage")
        return record

    def forget(self) -> None:
        """Remove the record, before the stage runs again: what it made may be incomplete from now on."""
        with contextlib.suppress(OSError):
            self.record_file.unlink()


def record_file(folder: Path, stage: str) -> Path:
    """The record of a stage of the scene or the trial whose results are in `folder`."""
    return folder / "stages" / f"{stage}.json"


def _read_record(folder: Path, stage: str) -> Record | None:
    """The record of a stage of the scene whose results are in `folder`."""
    try:
        data = read_json(record_file(folder, stage))
        return Record(**{key: data[key] for key in ("key", "parts", "result", "products", "seconds")})
    except (UnreadableFile, KeyError, TypeError):
        return None


def plan(pipeline: Pipeline) -> list[Task]:
    """The tasks of a pipeline. Stages that others need are added; every task comes after those that it needs."""
    own = {stage.name: stage for stage in pipeline.own}
    tasks = []
    for scene in pipeline.scenes:
        # A scene of photos is made by `ingest`, on which every stage that reads it depends.
        first = () if scene.photos is None else ("ingest",)
        wanted: list[str] = []

        def add(name: str, wanted: list[str] = wanted, first: tuple[str, ...] = first) -> None:
            if name in wanted:
                return
            stage = own.get(name) or STAGES[name]
            for need in (*(first if name in ("check", "pack") else ()), *stage.needs):
                add(need)
            wanted.append(name)

        for name in pipeline.stages:
            if name != "ingest" or first:
                add(name)
        for name in (*(name for name in STAGES if name in wanted), *(name for name in wanted if name in own)):
            stage = own.get(name) or STAGES[name]
            needs = [*stage.needs, *(first if name in ("check", "pack") else ())]
            if isinstance(stage, Stage):
                needs += [other for other in stage.after if other in wanted]
            tasks.append(Task(scene, stage, tuple(needs), pipeline.out / scene.name))
    return tasks


def explain(tasks: list[Task], code: str) -> list[tuple[Task, Verdict, str]]:
    """What would run, and why, without running anything. What depends on a stage that runs may run."""
    told: list[tuple[Task, Verdict, str]] = []
    results: dict[str, dict[str, Result]] = {}
    waiting: dict[str, set[str]] = {}
    for task in tasks:
        scene = task.scene.name
        before = [need for need in task.needs if need in waiting.get(scene, set())]
        if before:
            verdict: Verdict = "run"
            why = f"{' and '.join(before)} must run first"
        else:
            verdict, why = task.decide(task.parts(results.get(scene, {}), code))
        record = task.record()
        if verdict == "run" or record is None:
            waiting.setdefault(scene, set()).add(task.name)
        else:
            results.setdefault(scene, {})[task.name] = record.result
        told.append((task, verdict, why))
    return told


def code_version(kind: str) -> str:
    """What stands for the code in keys: the version, or a digest of every source file of raymine as well."""
    return __version__ if kind == "version" else source_digest()
