"""`raymine check`: find all problems of a scene in one pass, and say how `train` would use it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from .. import output

if TYPE_CHECKING:
    from raymine.contracts import Scene
    from raymine.experiment.prepare import Prepared
    from raymine.scenes import SceneReport

# More rows than anyone reads. A file with one fault in each of 100,000 frames would print for minutes.
_MOST_ROWS = 50


@dataclass(frozen=True)
class Check:
    """Check a scene: how `raymine train` would use it, and all problems, each with its file and its fix. Changes
    nothing."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin`."""
    downscale: int = 1
    """Check as if the size of images were divided by this."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        """Exit code 0 if there is no error (there may be warnings), else 3."""
        from raymine.scenes import examine_scene
        from raymine.scenes.problems import refuse

        with output.progress_bar("Checking images") as progress:
            report = examine_scene(self.scene, self.downscale, progress=progress)
        errors = sum(problem.severity == "error" for problem in report.problems)
        prepared = None if errors else self._prepare()
        if prepared is not None:
            report = _with_recipe(report, prepared, self.scene)
        if self.json:
            output.emit_json(self._document(report, errors, prepared))
            if errors:
                output.say(f"error: {refuse(Path(self.scene), report.problems).message}")
        else:
            self._print(report, errors, prepared)
        return 3 if errors else 0

    def _command(self) -> str:
        divided = "" if self.downscale == 1 else f" --downscale {self.downscale}"
        return f"raymine train {shlex.quote(self.scene)}{divided}"

    def _prepare(self) -> Prepared:
        """What `raymine train SCENE` would do: the same code decides it."""
        from raymine.experiment import TrainRequest
        from raymine.experiment.prepare import prepare

        return prepare(TrainRequest(scene=self.scene, downscale=self.downscale))

    def _document(self, report: SceneReport, errors: int, prepared: Prepared | None) -> dict[str, object]:
        return {
            "scene": self.scene,
            "ok": errors == 0,
            "errors": errors,
            "warnings": len(report.problems) - errors,
            "problems": [asdict(p) for p in report.problems],
            "format": report.format,
            **({} if report.scene is None else _description(report.scene)),
            "recipe": None if prepared is None else prepared.config.recipe,
            "device": None if prepared is None else prepared.config.device,
            "not_used": list(report.unused),
        }

    def _print(self, report: SceneReport, errors: int, prepared: Prepared | None) -> None:
        from raymine.scenes.readers.detect import FORMAT_NAMES

        console = output.results()
        format_only = (f"Format: {FORMAT_NAMES[report.format]}.",) if report.format != "unknown" else ()
        for sentence in format_only if report.scene is None else report.scene.decisions:
            console.print(sentence, markup=False, soft_wrap=True)
        if prepared is not None:
            where = f"It trains on the {_DEVICES[prepared.config.device]}."
            console.print(f"{where} `raymine train --help` lists what else it takes.", markup=False, soft_wrap=True)
        if report.problems:
            rows = [(p.severity, p.file, p.what, p.fix) for p in report.problems[:_MOST_ROWS]]
            console.print(output.table("", ("severity", "file", "what is wrong", "what to do"), rows))
        hidden = len(report.problems) - _MOST_ROWS
        if hidden > 0:
            console.print(f"{hidden} more problems are not shown; --json lists all.", markup=False, soft_wrap=True)
        found = f"{_count(errors, 'error')}, {_count(len(report.problems) - errors, 'warning')}."
        verdict = "Training needs the errors fixed." if errors else f"It can be trained: {self._command()}"
        console.print(f"{self.scene}: {found} {verdict}", markup=False, soft_wrap=True)


_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


def _with_recipe(report: SceneReport, prepared: Prepared, name: str) -> SceneReport:
    """The report with what training would add: decisions and warnings that depend on the recipe."""
    from raymine.scenes import Problem

    known = () if report.scene is None else report.scene.warnings
    fix = "`raymine recipes` lists the recipes."
    added = [Problem(name, w, fix, "warning", "recipe") for w in prepared.scene.warnings if w not in known]
    return replace(report, problems=[*report.problems, *added], scene=prepared.scene)


def _description(scene: Scene) -> dict[str, object]:
    """How a scene is used, as `train` uses it. Lengths in `bounds` are in units of the normalised scene."""
    import numpy as np

    linear, shift = scene.normalisation[:3, :3], scene.normalisation[:3, 3]
    return {
        "frames": len(scene.frames),
        "split": {split: len(scene.of_split(split)) for split in ("train", "val", "test")},
        "image_sizes": sorted({(camera.width, camera.height) for camera in scene.cameras}),
        "cameras": len(scene.cameras),
        "camera_models": sorted({camera.model for camera in scene.cameras}),
        "dynamic": scene.dynamic,
        "background": scene.background,
        "scale": float(np.cbrt(np.linalg.det(linear))),
        "centre": (-np.linalg.solve(linear, shift) + 0.0).tolist(),
        "bounds": asdict(scene.bounds),
        "decisions": scene.decisions,
    }


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
