"""The stages of a pipeline, in one table: adding one is one entry of `STAGES`.

A stage is a command of raymine. Its key is the digest of its options, of `uses` (what it takes from the stages before
it, or from files), and of the code. Outputs that are not replaced atomically by their command have the key in their
name, so that what an interrupted process left is never taken for a result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raymine.errors import RunError
from raymine.files import JSON, UnreadableFile, file_digest
from raymine.run_files import EVALUATION

from .checkpoints import best_step, checkpoint_files, damaged_checkpoints, last_step, tensors_digest

if TYPE_CHECKING:
    from .spec import SceneSpec

Result = dict[str, JSON]

EXPORTED = "model.safetensors"
"""What the stage `export` writes if the file does not say."""


@dataclass(frozen=True)
class Site:
    """One scene of a pipeline while it runs. folder: of everything that is made for it. results: of finished stages.

    key: the key of the stage in question, shortened for file names.
    """

    scene: SceneSpec
    folder: Path
    results: Mapping[str, Result]
    key: str = ""

    @property
    def scene_path(self) -> str:
        """The scene folder, or "builtin"."""
        return str(self.results["ingest"]["scene"]) if self.scene.path is None else self.scene.path

    @property
    def out(self) -> Path:
        """The folder of everything that the pipeline makes."""
        return self.folder.parent

    @property
    def run(self) -> Path:
        """The run folder of the stage `train`."""
        return Path(self.results["train"]["run"]) if "train" in self.results else self.folder / f"train-{self.key}"

    @property
    def words(self) -> dict[str, str]:
        """What may stand in braces in the command of a stage of one's own."""
        run = {"run": str(self.run)} if "train" in self.results else {}
        scene = {"scene": self.scene_path} if self.scene.path or "ingest" in self.results else {}
        return {"name": self.scene.name, "folder": str(self.folder), **scene, **run}


@dataclass(frozen=True)
class Stage:
    """One stage.

    needs: stages that run before it, whether asked for or not. after: stages that run before it if they were asked for.
    command: the arguments of raymine, without options. uses: what it depends on besides its options and the code.
    result: what others may use of it, from the JSON that the command printed. products: files that must stay as they
    are while the result counts. leftovers: paths that an interrupted attempt may have left, which are removed first.
    program: what takes the arguments, as `child.py` names it. fixed: options that a pipeline file may not give, since
    the pipeline gives them or relies on their default.
    """

    name: str
    needs: tuple[str, ...]
    command: Callable[[Site], list[str]]
    uses: Callable[[Site], JSON]
    result: Callable[[Site, JSON], Result]
    products: Callable[[Site], list[Path]] = lambda _: []
    leftovers: Callable[[Site], list[Path]] = lambda _: []
    after: tuple[str, ...] = ()
    program: str = "raymine"
    fixed: tuple[str, ...] = ("json",)


@dataclass(frozen=True)
class OwnStage:
    """A stage that a pipeline file defines: any command. inputs: files on which it depends. folder: where it runs."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    inputs: tuple[Path, ...]
    folder: Path


def _at(site: Site) -> list[str]:
    size = ["--downscale", str(site.scene.downscale)] if site.scene.downscale != 1 else []
    return [site.scene_path, *size]


def _files(site: Site) -> JSON:
    """Changes when a file of the scene does. Cheap: `pack` looks at contents, and others depend on what it finds."""
    return scene_stamp(site.scene_path, site.out)


def _packed(site: Site, printed: JSON) -> Result:
    # Scenes without depth maps have no entry for them, as before there was one.
    depth = {} if printed.get("depth") is None else {"depth": printed["depth"]}
    return {key: printed.get(key) for key in ("scene_digest", "train", "test")} | depth


def _to_train_on(site: Site) -> JSON:
    return {key: value for key, value in site.results["pack"].items() if key != "test"}


def _trained(site: Site, printed: JSON) -> Result:
    best = best_step(site.run)
    chosen = {} if best is None else {"best": tensors_digest(site.run, best)}
    return {"run": str(site.run), "tensors": tensors_digest(site.run, last_step(site.run)), **chosen}


def _model(site: Site) -> JSON:
    """What stages that take the latest or the best checkpoint depend on."""
    return {key: value for key, value in site.results["train"].items() if key != "run"}


def _scored(site: Site, printed: JSON) -> Result:
    kept = ("psnr", "ssim", "lpips_alex", "lpips_vgg", "count", "protocol", "step")
    scores = {key: printed[key] for key in kept if key in printed}
    return {**scores, "views": {v["name"]: v["psnr"] for v in printed.get("images", [])}}


def _exported(site: Site) -> list[Path]:
    named = site.scene.options.get("export", {}).get("to", EXPORTED)
    return [site.folder / f"export-{site.key}" / str(name) for name in (named if isinstance(named, list) else [named])]


def _written(site: Site, printed: JSON) -> Result:
    files = _exported(site)
    return {"files": [str(file) for file in files], "digest": [_exported_digest(file) for file in files]}


def _exported_digest(path: Path) -> str:
    """sha256 in hex of the name and the content of a file."""
    try:
        return file_digest(path, path.name.encode(errors="surrogateescape"))
    except UnreadableFile as error:
        raise RunError(f"{path} {error.what}") from error


def _rendered(site: Site) -> Path:
    return site.folder / f"render-{site.key}.mp4"


_VERIFIED = (".safetensors", ".onnx")
"""Exported files that can be rendered as the model is; the others have no field in them."""


def _verify(site: Site) -> list[str]:
    files = site.results.get("export", {}).get("files", [])
    return ["verify", str(site.run), *(f"--model={file}" for file in files if file.endswith(_VERIFIED))]


_TABLE = (
    Stage(
        "ingest",
        needs=(),
        command=lambda site: ["ingest", str(site.scene.photos), "--out", str(site.folder / f"scene-{site.key}")],
        uses=lambda site: stamp(Path(str(site.scene.photos)), site.out),
        result=lambda site, _: {"scene": str(site.folder / f"scene-{site.key}")},
        products=lambda site: [site.folder / f"scene-{site.key}"],
        leftovers=lambda site: [site.folder / f"scene-{site.key}"],
        fixed=("out", "json"),
    ),
    Stage(
        "check",
        needs=(),
        command=lambda site: ["check", *_at(site), "--json"],
        uses=_files,
        result=lambda site, printed: {"warnings": printed.get("warnings")},
        fixed=("downscale", "json"),
    ),
    Stage(
        "pack",
        needs=(),
        command=lambda site: ["pack", *_at(site), "--json"],
        uses=_files,
        result=_packed,
        fixed=("downscale", "json"),
    ),
    Stage(
        "train",
        needs=("pack",),
        command=lambda site: ["train", *_at(site), "--out", str(site.run), "--resume", "--json"],
        uses=_to_train_on,
        result=_trained,
        products=lambda site: checkpoint_files(site.run),
        leftovers=lambda site: damaged_checkpoints(site.run),
        after=("check",),
        fixed=("downscale", "out", "resume", "json", "view", "host", "port"),
    ),
    Stage(
        "eval",
        needs=("train",),
        command=lambda site: ["eval", str(site.run), "--json"],
        uses=lambda site: [site.results["train"], site.results["pack"]["test"]],
        result=_scored,
        products=lambda site: [site.run / EVALUATION],
        fixed=("split", "json"),
    ),
    Stage(
        "render",
        needs=("train",),
        command=lambda site: ["render", str(site.run), "--out", str(_rendered(site)), "--json"],
        uses=_model,
        result=lambda site, _: {"file": str(_rendered(site))},
        products=lambda site: [_rendered(site)],
        leftovers=lambda site: [_rendered(site)],
        fixed=("out", "json", "overwrite"),
    ),
    Stage(
        "export",
        needs=("train",),
        command=lambda site: ["export", str(site.run), *(f"--to={file}" for file in _exported(site))],
        uses=_model,
        result=_written,
        products=_exported,
        leftovers=lambda site: [site.folder / f"export-{site.key}"],
    ),
    Stage(
        "verify",
        needs=("eval",),
        command=lambda site: [*_verify(site), "--json"],
        uses=lambda site: [site.results["eval"], site.results.get("export", {}).get("digest")],
        result=lambda site, printed: {key: printed.get(key) for key in ("views", "largest")},
        after=("export",),
        fixed=("model", "json"),
    ),
)

STAGES: dict[str, Stage] = {stage.name: stage for stage in _TABLE}
"""Every stage by name, in the order in which they run."""

DEFAULT_STAGES = ("check", "pack", "train", "eval")


def scene_stamp(scene: str, *without: Path) -> str:
    """Changes when a file of a scene does. Of a scene that is given as a file its folder counts, where its images lie.

    without: folders and files that do not count, such as those that the stages themselves write.
    """
    path = Path(scene)
    if scene == "builtin":
        return scene
    if path.is_file():
        return f"{path.name}/{folder_stamp(path.parent, *without)}"
    return folder_stamp(path, *without)


def folder_stamp(folder: Path, *without: Path) -> str:
    """A digest of names, sizes and times of all files below a folder, hidden ones and those of `without` left out."""
    digest, left_out = hashlib.sha256(), {os.path.realpath(path) for path in without}
    names_left_out = {os.path.basename(path) for path in left_out}

    def counts(place: str, name: str) -> bool:
        if name.startswith("."):
            return False
        # Most files need no look at what their path leads to.
        return name not in names_left_out or os.path.realpath(os.path.join(place, name)) not in left_out

    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if counts(place, name))
        for name in sorted(names):
            if counts(place, name):
                path = os.path.join(place, name)
                digest.update(os.fsencode(os.path.relpath(path, folder)) + stamp(Path(path)).encode())
    return digest.hexdigest()


def stamp(path: Path, *without: Path) -> str:
    """Size, times and inode of a file, or the stamp of a folder; "-" if there is nothing."""
    try:
        if path.is_dir():
            return folder_stamp(path, *without)
        state = path.stat()
    except OSError:
        return "-"
    return f"{state.st_size}/{state.st_mtime_ns}/{state.st_ino}"


def digest_of(value: JSON) -> str:
    """sha256 in hex of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
