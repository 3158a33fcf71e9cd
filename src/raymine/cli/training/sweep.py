"""`raymine sweep`: train with many settings and compare them on views held out from training."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import tyro

from raymine.errors import ConfigError

from .. import output
from ..flags import flags_of
from .train import Train

if TYPE_CHECKING:
    from raymine.pipeline.devices import Place
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
    """Where trials run: `local` is this machine, or the hosts of a Slurm allocation; `ray` a Ray cluster."""
    ray_address: str | None = None
    """With --on ray: HOST:PORT of the cluster. RAY_ADDRESS if not given; without either, a local one is started."""
    dry_run: bool = False
    """Only list the trials, and say which would run."""
    jobs: int | None = None
    """Trials that run at the same time. One for each GPU if not given; on a CPU one."""
    out: Path | None = None
    """Folder of the results, instead of the one that the file names."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.pipeline.sweep import plan_sweep, require_own_folder, run_sweep
        from raymine.pipeline.sweep_report.page import write_results
        from raymine.pipeline.sweep_spec import load_sweep

        if self.ray_address is not None and self.on != "ray":
            raise ConfigError("--ray-address is for --on ray.", hint="Add --on ray, or leave it out.")
        if self.jobs is not None and not 1 <= self.jobs <= 256:
            raise ConfigError(f"--jobs must be between 1 and 256, got {self.jobs}.")
        known = [flag.lstrip("-").replace("-", "_") for flag in flags_of(Train) if flag.startswith("--")]
        sweep = load_sweep(self.file, known)
        if self.out is not None:
            sweep = dataclasses.replace(sweep, out=self.out.absolute())
        require_own_folder(sweep)
        _require_trainable(sweep)
        if self.dry_run:
            return self._tell_plan(sweep, plan_sweep(sweep))
        with self._where(sweep) as where:
            rows, done = run_sweep(sweep, jobs=self.jobs, where=where, tell=output.say)
        document = write_results(sweep, rows, done.exit_code == 0)
        if self.json:
            output.emit_json(document)
        else:
            _print(sweep, rows)
        _conclude(sweep, rows)
        return done.exit_code

    def _where(self, sweep: Spec) -> contextlib.AbstractContextManager[list[Place] | None]:
        """The places of trials on a Ray cluster, which the block has joined; None for those of `--on local`."""
        if self.on == "local":
            return contextlib.nullcontext()
        from raymine.pipeline.ray_cluster import ray_places

        return ray_places(self.jobs or sweep.jobs, self.ray_address)

    def _tell_plan(self, sweep: Spec, trials: list[tuple[str, Point, int, str, str]]) -> int:
        columns = ("trial", "settings", "seed", "verdict", "why")
        if self.json:
            output.emit_json([dict(zip(columns, trial, strict=True)) for trial in trials])
            return 0
        from raymine.pipeline.sweep_report.words import value

        names = list(sweep.space)
        rows = [[name, *(value(point[n]) for n in names), str(seed), *rest] for name, point, seed, *rest in trials]
        if rows:
            output.results().print(output.table("", ("trial", *names, "seed", "", "because"), rows))
        if sweep.search == "optuna":
            left = max(0, sweep.trials - len(trials) // len(sweep.seeds))
            output.say(f"Optuna chooses up to {left} more points while the sweep runs.")
        return 0


def _require_trainable(sweep: Spec) -> None:
    """Raise the error that a trial would end with, as far as it can be known before training."""
    from raymine import recipes
    from raymine.config import allowing, replace_fields
    from raymine.experiment.prepare import prepare
    from raymine.pipeline.run import words_of
    from raymine.pipeline.sweep import options_of_trial, settings_of
    from raymine.pipeline.sweep_spec import probes

    from ..app import COMMANDS, parse
    from .stage_options import require_fits

    prepared = None
    for point in probes(sweep):
        options = options_of_trial(sweep, point, sweep.seeds[0])
        for name, value in options.items():
            table = "space" if name in sweep.options else "train"
            require_fits(f"{sweep.file}: [{table}]", "train", name, value, COMMANDS)
        arguments = [sweep.scene, *words_of(options)]
        command = parse("train", arguments)
        if isinstance(command, int):
            raise ConfigError(f"{sweep.file}: `raymine train` does not take {' '.join(arguments)}.")
        request = cast(Train, command).request(settings_of(sweep, point))
        # Loading the scene once is enough to know every config.
        prepared = prepared or prepare(request)
        recipe = recipes.chosen_for(prepared.scene)[0] if request.recipe == recipes.AUTO else request.recipe
        with allowing(request.packages):
            replace_fields(recipes.build(recipe, prepared.scene, prepared.device.type), request.overrides)


def _print(sweep: Spec, rows: list[Row]) -> None:
    from raymine.pipeline.sweep_report import words

    names = words.varied(sweep, rows)
    spread = ["spread"] if len(sweep.seeds) > 1 else []
    title = "held-out\nPSNR (dB)" if sweep.metric == "held_out_psnr" else "best held-out\nPSNR (dB)"
    lines = []
    for row in rows:
        cells = [output.number(row.score), *([output.number(row.spread)] if spread else [])]
        seconds = words.trained_seconds(row)
        cells.append("-" if seconds is None else output.duration(seconds))
        lines.append([*(words.value(row.settings[n]) for n in names), *cells, row.trials[0].name, words.state(row)])
    columns = (*names, title, *spread, "trained", "trial", "")
    output.results().print(output.table("", columns, lines, right=(title, *spread, "trained")))


def _conclude(sweep: Spec, rows: list[Row]) -> None:
    from raymine.pipeline.sweep_report import page, words

    for row in rows:
        for trial in row.trials:
            if trial.state == "failed":
                output.warn(f"{trial.name}: {trial.why}")
    if rows and rows[0].score is not None:
        best, run = rows[0], words.best_trial(rows[0]).result["run"]
        output.say(f"Best: {words.settings(best.settings)} ({best.score:.2f} dB on held-out views). Run: {run}")
    output.say(f"Results: {sweep.out / page.PAGE} and {sweep.out / page.RESULTS}")
