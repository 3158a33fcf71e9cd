"""`raymine pipeline`: stages of several scenes from one file, each run once for the same inputs, settings and code."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from raymine.errors import ConfigError

from .. import output
from .stage_options import require_commands, require_sense

if TYPE_CHECKING:
    from raymine.pipeline import Pipeline as Spec
    from raymine.pipeline import PipelineResult
    from raymine.pipeline.table import SceneScore


@dataclass(frozen=True)
class Pipeline:
    """Run the stages of a pipeline file (TOML) for each of its scenes: check, ingest, pack, train, eval, render,
    export, verify. Stages whose inputs, settings and code have not changed are skipped (docs/pipelines.md)."""

    file: tyro.conf.Positional[Path]
    """The pipeline file."""
    dry_run: bool = False
    """Only say what would run, and why."""
    jobs: int | None = None
    """Stages that run at the same time. One for each GPU if not given; on a CPU one."""
    root: Path | None = None
    """Folder of the scenes, instead of the one that the file names."""
    only: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Only this scene of the file. Repeat it for more."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An option for all scenes that goes over what the file says, such as train.steps=200, eval.views=10 or
    downscale=8. Repeat it for more."""
    out: Path | None = None
    """Folder of the results, instead of the one that the file names."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.files import write_json
        from raymine.pipeline import load_pipeline, plan, run_pipeline
        from raymine.pipeline.plan import code_version, explain
        from raymine.pipeline.table import scores

        if self.jobs is not None and not 1 <= self.jobs <= 256:
            raise ConfigError(f"--jobs must be between 1 and 256, got {self.jobs}.")
        pipeline = load_pipeline(self.file, root=self.root, only=self.only, settings=self.set)
        if self.out is not None:
            pipeline = dataclasses.replace(pipeline, out=self.out.absolute())
        tasks = plan(pipeline)
        require_commands(pipeline, tasks)
        if self.dry_run:
            require_sense(pipeline, tasks)
            told = explain(tasks, code_version(pipeline.code))
            rows = [(task.scene.name, task.name, verdict, why) for task, verdict, why in told]
            if self.json:
                output.emit_json([dict(zip(("scene", "stage", "verdict", "why"), row, strict=True)) for row in rows])
            else:
                output.results().print(output.table("", ("scene", "stage", "", "because"), rows))
            return 0
        check = functools.partial(require_sense, pipeline, tasks)
        result = run_pipeline(pipeline, jobs=self.jobs, tell=output.say, check=check)
        lines = scores(result.results)
        document = {
            "file": str(self.file),
            "out": str(pipeline.out),
            "ok": result.exit_code == 0,
            "scores": [asdict(line) for line in lines],
            "tasks": [asdict(task) for task in result.tasks],
        }
        write_json(pipeline.out / "results.json", document, "write the results")
        if self.json:
            output.emit_json(document)
        else:
            _print(result, lines)
        output.say(_sentence(result, pipeline))
        return result.exit_code


def _sentence(result: PipelineResult, pipeline: Spec) -> str:
    words = {"run": ("done",), "unchanged": ("skipped",), "failed": ("failed",), "not reached": ("blocked", "waiting")}
    counts = {word: sum(task.state in states for task in result.tasks) for word, states in words.items()}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{len(result.tasks)} stages: {told}. Results: {pipeline.out / 'results.json'}"


def _print(result: PipelineResult, lines: list[SceneScore]) -> None:
    stages = list(dict.fromkeys(task.stage for task in result.tasks))
    state = {(task.scene, task.stage): task for task in result.tasks}
    words = {
        "done": "run",
        "skipped": "unchanged",
        "waiting": "not reached",
        "running": "stopped",
        "blocked": "not reached",
    }
    rows = []
    for scene in dict.fromkeys(task.scene for task in result.tasks):
        cells = [state.get((scene, stage)) for stage in stages]
        rows.append([scene, *("-" if task is None else words.get(task.state, task.state) for task in cells)])
    output.results().print(output.table("", ("scene", *stages), rows))
    if any(line.psnr is not None for line in lines):
        _print_scores(lines)
    for task in result.tasks:
        if task.state == "failed":
            output.warn(f"{task.scene}: {task.stage}: {task.why}")


def _print_scores(lines: list[SceneScore]) -> None:
    from raymine.pipeline.table import mean

    nets = [net for net in ("alex", "vgg") if any(getattr(line, f"lpips_{net}") is not None for line in lines)]
    device = ["GPU\nmemory"] if any(line.device_memory for line in lines) else []
    headers = [f"LPIPS\n({net})" for net in nets]
    numbers = ["PSNR\n(dB)", "SSIM", *headers, "views", "steps", "trained", "in all", "memory", *device]

    def row(line: SceneScore) -> list[str]:
        cells = [line.scene, line.recipe, output.number(line.psnr), output.number(line.ssim, 4)]
        cells += [output.number(getattr(line, f"lpips_{net}"), 4) for net in nets]
        cells += [str(line.views or "-"), str(line.step or "-")]
        cells += ["-" if value is None else output.duration(value) for value in (line.train_seconds, line.wall)]
        cells += ["-" if line.memory is None else output.size(line.memory)]
        cells += ["-" if line.device_memory is None else output.size(line.device_memory)] if device else []
        return [*cells, line.protocol if len(line.protocol) < 16 else line.protocol[:8]]

    made = output.table("", ("scene", "recipe", *numbers, "protocol"), [row(line) for line in lines], right=numbers)
    made.add_section()
    made.add_row(*row(mean(lines)))
    output.results().print(made)
    for sentence in dict.fromkeys(line.protocol_sentence for line in lines if line.protocol_sentence):
        output.results().print(sentence, markup=False, soft_wrap=True)
