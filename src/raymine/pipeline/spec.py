"""Read and check a pipeline file. docs/pipelines.md describes its format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, SceneError, did_you_mean, option
from raymine.files import JSON, expanded

from .reading import Settings, number, options_of, path_in, read_toml, require_known, settings_of, tables, text, words
from .stages import DEFAULT_STAGES, STAGES, OwnStage

_TOP = ("out", "root", "stages", "jobs", "retries", "backoff", "code", "scene", "stage")
_SCENE = ("path", "photos", "name", "downscale")


@dataclass(frozen=True)
class SceneSpec:
    """One scene of a pipeline. path: the scene folder, or "builtin"; with photos, it is made by the stage `ingest`.

    options: for each stage, flags of its command by name, those of the pipeline included.
    """

    name: str
    path: str | None
    photos: Path | None = None
    downscale: int = 1
    options: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pipeline:
    """A checked pipeline file.

    out: the folder of everything that it makes. stages: those that were asked for, in the order of the table. jobs:
    processes at a time; None is one for each GPU, or one on a CPU. retries, backoff: how often a failed stage is
    tried again, and the seconds before the first time, which double. code: whether a change of raymine's `source` or
    only of its `version` makes stages run again. own: stages that the file defines.
    """

    file: Path
    out: Path
    scenes: tuple[SceneSpec, ...]
    stages: tuple[str, ...] = DEFAULT_STAGES
    jobs: int | None = None
    retries: int = 2
    backoff: float = 2.0
    code: str = "source"
    own: tuple[OwnStage, ...] = ()


def load_pipeline(
    path: Path, *, root: Path | None = None, only: Collection[str] = (), settings: Collection[str] = ()
) -> Pipeline:
    """Read a pipeline file. `ConfigError` for what is wrong in it, `SceneError` for a scene that does not exist.

    root: the folder of the scenes, instead of the one that the file names. only: names of the scenes to take; empty is
    all of them. settings: texts such as `train.steps=200` and `downscale=4`, which go over what the file says, for
    every scene.
    """
    changes = settings_of(settings, STAGES)
    data = read_toml(path, "pipeline file")
    here = path.absolute().parent
    own = tuple(_own_stage(path, entry, here) for entry in tables(path, data, "stage"))
    known = (*STAGES, *(stage.name for stage in own))
    if len(set(known)) < len(known):
        twice = next(name for name in known if known.count(name) > 1)
        raise ConfigError(f"{path}: the stage `{twice}` is defined twice.", hint="Give yours another name.")
    shared = {name: options_of(path, name, data[name]) for name in STAGES if name in data}
    require_known(path, "the file", data, (*_TOP, *STAGES))
    stages = _stage_names(path, data.get("stages"), known, own)
    entries = tables(path, data, "scene")
    if not entries:
        raise ConfigError(f"{path} names no scene.", hint='Add [[scene]] with path = "...".')
    home = path_in(path, "root", data.get("root", str(here)), here) if root is None else root.absolute()
    names = [_scene_name(path, entry) for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two scenes have the name `{name}`.", hint="Give one of them a `name`.")
    for name in only:
        if name not in names:
            raise ConfigError(
                f"{path} has no scene `{name}`.{did_you_mean(name, names)}", hint=f"Scenes: {', '.join(names)}."
            )
    chosen = [entry for entry, name in zip(entries, names, strict=True) if not only or name in only]
    scenes = tuple(_scene(path, entry, home, shared, changes) for entry in chosen)
    _require_no_cycle(path, own)
    for scene in scenes:
        for stage in own:
            _require_words(path, stage, scene, own)
    code = data.get("code", "source")
    if code not in ("source", "version"):
        raise ConfigError(f'{path}: `code` must be "source" or "version", got {code!r}.')
    return Pipeline(
        file=path,
        out=path_in(path, "out", data.get("out", f"results/{path.stem}"), here),
        scenes=scenes,
        stages=stages,
        jobs=None if "jobs" not in data else int(number(path, data, "jobs", 1, 1, 256)),
        retries=int(number(path, data, "retries", 2, 0, 100)),
        backoff=number(path, data, "backoff", 2.0, 0.0, 3600.0),
        code=code,
        own=own,
    )


def _scene_name(path: Path, entry: dict[str, Any]) -> str:
    require_known(path, "a scene", entry, (*_SCENE, *STAGES))
    if ("path" in entry) == ("photos" in entry):
        raise ConfigError(f"{path}: a scene needs `path` (a scene folder) or `photos` (for the stage `ingest`).")
    given = text(path, "photos" if "photos" in entry else "path", entry)
    name = text(path, "name", entry) if "name" in entry else expanded(given).name
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        raise ConfigError(f"{path}: `name` of a scene must be a folder name, got {name!r}.", hint="Give it a `name`.")
    return name


def _scene(
    path: Path, entry: dict[str, Any], root: Path, shared: Mapping[str, Mapping[str, JSON]], changes: Settings
) -> SceneSpec:
    name = _scene_name(path, entry)
    given = text(path, "photos" if "photos" in entry else "path", entry)
    place = given if given == "builtin" else str((root / expanded(given)).resolve())
    if place != "builtin" and not Path(place).exists():
        raise SceneError(
            f"{path}: the scene {name} does not exist: {place}.",
            hint=f"Give the folder of the scenes with {option('root')}, or leave scenes out with {option('only')}.",
        )
    own = {stage: options_of(path, stage, entry[stage]) for stage in STAGES if stage in entry}
    options = {s: {**shared.get(s, {}), **own.get(s, {}), **changes.options.get(s, {})} for s in STAGES}
    _require_file_names(path, options["export"].get("to", []))
    downscale = changes.downscale or int(number(path, entry, "downscale", 1, 1, 64))
    if "photos" in entry:
        return SceneSpec(name, None, Path(place), downscale, options)
    return SceneSpec(name, place, None, downscale, options)


def _require_file_names(path: Path, to: JSON) -> None:
    """Raise `ConfigError` unless the exported files have names without folders: the pipeline has a folder for them."""
    for name in to if isinstance(to, list) else [to]:
        if not isinstance(name, str) or not name or name.startswith(".") or "/" in name or "\\" in name:
            raise ConfigError(
                f"{path}: `to` of [export] must be file names without a folder, got {name!r:.80}.",
                hint='For instance: to = ["model.glb", "model.safetensors"]',
            )


def _own_stage(path: Path, entry: dict[str, Any], here: Path) -> OwnStage:
    require_known(path, "a stage", entry, ("name", "command", "needs", "inputs"))
    name, command = text(path, "name", entry), entry.get("command")
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"{path}: `name` of a stage must have letters, digits, - and _ only, got {name!r}.")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise ConfigError(f"{path}: the stage `{name}` needs `command`, a list of words.")
    needs, inputs = (words(path, key, entry.get(key, [])) for key in ("needs", "inputs"))
    files = tuple(here / expanded(text) for text in inputs)
    for file in files:
        if not file.exists():
            raise ConfigError(
                f"{path}: the stage `{name}` has an input that does not exist: {file}.",
                hint="`inputs` are files that are there before; results of other stages follow from `needs`.",
            )
    return OwnStage(name, tuple(command), needs, files, here)


def _require_words(path: Path, stage: OwnStage, scene: SceneSpec, own: tuple[OwnStage, ...]) -> None:
    """Raise `ConfigError` if the command of a stage has words in braces that are not known when it runs."""
    needs = _needs(own)
    before = set(stage.needs)
    while more := {need for name in before for need in needs[name]} - before:
        before |= more
    # The stage `ingest` makes a scene of photos; `check` and `pack` wait for it.
    there = scene.photos is None or not before.isdisjoint({"ingest", "check", "pack"})
    known = ["name", "folder", *(["scene"] if there else []), *(["run"] if "train" in before else [])]
    try:
        for word in stage.command:
            word.format_map(dict.fromkeys(known, ""))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(
            f"{path}: the command of `{stage.name}` has a word in braces that is not known: {error}.",
            hint=f"Known: {', '.join(known)}. A stage that needs `train` also has `run`. Double other braces.",
        ) from error


def _stage_names(path: Path, given: Any, known: Collection[str], own: tuple[OwnStage, ...]) -> tuple[str, ...]:
    chosen = DEFAULT_STAGES if given is None else words(path, "stages", given)
    chosen = (*chosen, *(stage.name for stage in own if given is None))
    for name in (*chosen, *(need for stage in own for need in stage.needs)):
        if name not in known:
            raise ConfigError(
                f"{path}: there is no stage `{name}`.{did_you_mean(name, known)}", hint=f"Stages: {', '.join(known)}."
            )
    return tuple(dict.fromkeys(chosen))


def _needs(own: tuple[OwnStage, ...]) -> dict[str, tuple[str, ...]]:
    """What every stage needs, by its name."""
    return {**{stage.name: stage.needs for stage in STAGES.values()}, **{stage.name: stage.needs for stage in own}}


def _require_no_cycle(path: Path, own: tuple[OwnStage, ...]) -> None:
    needs = _needs(own)

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            circle = " needs ".join((*above[above.index(name) :], name))
            raise ConfigError(f"{path}: the stages form a cycle: {circle}.", hint="Remove one of these `needs`.")
        for need in needs.get(name, ()):
            visit(need, (*above, name))

    for stage in own:
        visit(stage.name, ())
