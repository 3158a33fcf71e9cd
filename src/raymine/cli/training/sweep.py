"""`raymine sweep`: train with many settings and compare them on views held out from training."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import tyro

from raymine.errors import ConfigError

from .. import output
from ..flags import flags_of
from .train import Train

if TYPE_CHECKING:
    from raymine.pipeline.sweep import Row
    from raymine.pipeline.sweep_spec import Point
    from raymine.pipeline.sweep_spec import Sweep as Spec


@dataclass(frozen=True)
class Sweep:
    """Train a scene with every setting of a sweep file (TOML), and list the settings by the PSNR of views that were
    held out from training. The same command continues a sweep that was stopped (docs/sweeps.md)."""

    file: tyro.conf.Positional[Path]
    """The sweep file."""
    on: Literal["local", "ray"] = "local"
    """Where trials run: `local` is this machine. `ray` is not in this version."""
    dry_run: bool = False
    """Only list the trials, and say which would run."""
    jobs: int | None = None
    """Trials that run at the same time. One for each GPU if not given; on a CPU one."""
    out: Path | None = None
    """Folder of the results, instead of the one that the file names."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.files import write_json
        from raymine.pipeline.sweep import plan_sweep, require_own_folder, run_sweep
        from raymine.pipeline.sweep_spec import load_sweep

        if self.on == "ray":
            raise ConfigError("--on ray: this version runs sweeps locally only.", hint="Use --on local.")
        if self.jobs is not None and not 1 <= self.jobs <= 256:
            raise ConfigError(f"--jobs must be between 1 and 256, got {self.jobs}.")
        known = [flag.lstrip("-").replace("-", "_") for flag in flags_of(Train) if flag.startswith("--")]
        sweep = load_sweep(self.file, known)
        if self.out is not None:
            sweep = dataclasses.replace(sweep, out=self.out.absolute())
        require_own_folder(sweep)
        _require_trainable(sweep)
        if self.dry_run:
            return self._tell_plan(plan_sweep(sweep))
        rows, done = run_sweep(sweep, jobs=self.jobs, tell=output.say)
        document = {
            "file": str(self.file),
            "out": str(sweep.out),
            "ok": done.exit_code == 0,
            "metric": sweep.metric,
            "rows": [asdict(row) for row in rows],
        }
        write_json(sweep.out / "results.json", document, "write the results")
        if self.json:
            output.emit_json(document)
        else:
            _print(sweep, rows)
        _conclude(sweep, rows)
        return done.exit_code

    def _tell_plan(self, trials: list[tuple[str, Point, int, str, str]]) -> int:
        columns = ("trial", "settings", "seed", "verdict", "why")
        if self.json:
            output.emit_json([dict(zip(columns, trial, strict=True)) for trial in trials])
            return 0
        names = list(trials[0][1])
        rows = [[name, *(_cell(point[n]) for n in names), str(seed), *rest] for name, point, seed, *rest in trials]
        output.results().print(output.table("", ("trial", *names, "seed", "", "because"), rows))
        return 0


def _require_trainable(sweep: Spec) -> None:
    """Raise the error that a trial would end with, as far as it can be known before training."""
    from raymine import recipes
    from raymine.config import allowing, replace_fields
    from raymine.experiment.prepare import prepare
    from raymine.pipeline.run import words_of
    from raymine.pipeline.sweep import options_of_trial, settings_of

    from ..app import parse

    prepared = None
    for point in sweep.points:
        arguments = [sweep.scene, *words_of(options_of_trial(sweep, point, sweep.seeds[0]))]
        command = parse("train", arguments)
        if isinstance(command, int):
            raise ConfigError(f"{sweep.file}: `raymine train` does not take {' '.join(arguments)}.")
        request = cast(Train, command).request(settings_of(sweep, point))
        # Loading the scene once is enough to know every config.
        prepared = prepared or prepare(request)
        recipe = recipes.chosen_for(prepared.scene)[0] if request.recipe == recipes.AUTO else request.recipe
        with allowing(request.packages):
            replace_fields(recipes.build(recipe, prepared.scene, prepared.device.type), request.overrides)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print(sweep: Spec, rows: list[Row]) -> None:
    names = [name for name in sweep.points[0] if len({repr(row.settings[name]) for row in rows}) > 1]
    spread = ["spread"] if len(sweep.seeds) > 1 else []
    title = "held-out\nPSNR (dB)" if sweep.metric == "held_out_psnr" else "best held-out\nPSNR (dB)"
    lines = []
    for row in rows:
        states = {trial.state for trial in row.trials}
        state = "" if states <= {"done", "skipped"} else "failed" if "failed" in states else "not reached"
        stops = [trial.result["pruned"] for trial in row.trials if trial.result.get("pruned")]
        if stops and not state:
            state = ", ".join(f"pruned at step {stop['step']} ({output.number(stop['psnr'])} dB)" for stop in stops)
        cells = [output.number(row.score), *([output.number(row.spread)] if spread else [])]
        seconds = [trial.result["elapsed"] for trial in row.trials if trial.result.get("elapsed") is not None]
        cells.append(output.duration(sum(seconds) / len(seconds)) if seconds else "-")
        lines.append([*(_cell(row.settings[name]) for name in names), *cells, row.trials[0].name, state])
    columns = (*names, title, *spread, "trained", "trial", "")
    output.results().print(output.table("", columns, lines, right=(title, *spread, "trained")))


def _conclude(sweep: Spec, rows: list[Row]) -> None:
    for row in rows:
        for trial in row.trials:
            if trial.state == "failed":
                output.warn(f"{trial.name}: {trial.why}")
    if rows[0].score is not None:
        best = ", ".join(f"{name} = {_cell(value)}" for name, value in rows[0].settings.items())
        output.say(f"Best: {best} ({rows[0].score:.2f} dB on held-out views). Run: {rows[0].trials[0].result['run']}")
    output.say(f"Results: {sweep.out / 'results.json'}")
