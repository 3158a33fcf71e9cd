"""`raymine bench`: measurements of this machine that users can repeat."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from raymine.errors import ConfigError

from . import output

if TYPE_CHECKING:
    from raymine.bench import Outcome, StepRow
    from raymine.bench.table import Table

BENCHMARKS = ("mining", "step")


@dataclass(frozen=True)
class Bench:
    """Measure training on this machine. `mining`: which samples to train on, at equal time. `step`: how quick it is."""

    benchmark: tyro.conf.Positional[str]
    """What to measure: `mining` or `step`."""
    scene: tyro.conf.Positional[str]
    """Scene folder, or the word `builtin` for the scene that comes with raymine."""
    policies: str = "none,prune,hard"
    """Compared, with commas: none, prune, hard, hard:{published,poisson,systematic,multinomial,topk,biased}."""
    seconds: float = 60.0
    """Seconds of training for every run; loading, compiling and evaluating do not count."""
    seeds: int = 1
    """Runs of every policy, each with a seed of its own."""
    views: int = 25
    """Evaluate this many held-out views, spread evenly."""
    recipe: str = "ngp"
    """What to train."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    downscale: int = 1
    """Divide the size of every image by this."""
    out: Path | None = None
    """`mining`: folder for the results, the next free `runs/bench-mining-SCENE-N` if not given. `step`: a file that
    rows are appended to."""
    resume: bool = False
    """Do what is missing of the benchmark in --out; start it where there is none."""
    no_page: bool = False
    """Do not draw the page mining.html, which needs matplotlib."""
    json: bool = False
    """Print the results as one JSON document on stdout."""

    def execute(self) -> int:
        _require_known(self.benchmark)
        return self._step() if self.benchmark == "step" else self._mining()

    def _step(self) -> int:
        from raymine.bench import StepRequest, bench_step
        from raymine.config import to_json

        from .bench_progress import StepProgress

        if self.resume or self.seeds != 1:
            raise ConfigError("`bench step` runs each policy once: it takes neither --resume nor --seeds.")
        request = StepRequest(
            scene=self.scene,
            policies=self.policies,
            seconds=self.seconds,
            recipe=self.recipe,
            device=self.device,
            downscale=self.downscale,
            views=self.views,
            out=self.out,
        )
        with StepProgress() as progress:
            if self.scene == "builtin":
                progress.make_builtin()
            rows = bench_step(request, progress.show)
        if self.json:
            output.emit_json([to_json(row) for row in rows])
        else:
            _print_steps(f"{self.scene}, {self.seconds:g} s of training each, {rows[0].environment.device}", rows)
        if self.out is not None:
            output.say(f"Rows: {self.out}")
        return 0

    def _mining(self) -> int:
        from raymine.bench import MiningRequest, bench_mining, table_of

        from .bench_progress import BenchProgress

        request = MiningRequest(
            scene=self.scene,
            policies=self.policies,
            seconds=self.seconds,
            seeds=self.seeds,
            recipe=self.recipe,
            device=self.device,
            downscale=self.downscale,
            views=self.views,
            out=self.out,
            resume=self.resume,
            page=not self.no_page,
            command=("raymine", *sys.argv[1:]),
        )
        with BenchProgress(self.seconds) as progress:
            if self.scene == "builtin":
                progress.make_builtin()
            outcome = bench_mining(request, progress)
        if self.json:
            output.emit_json(_summary(outcome))
        else:
            title = f"{self.scene}, {self.seconds:g} s of training each, {outcome.document.environment.device}"
            _print_table(title, table_of(outcome.document))
        output.say(f"Results: {outcome.folder / 'mining.json'}")
        if outcome.page is not None:
            output.say(f"Page: {outcome.page}")
        return 0


def _print_steps(title: str, rows: list[StepRow]) -> None:
    """A column per policy."""
    table: list[tuple[str, ...]] = [
        ("step", *(row.engine for row in rows)),
        ("ms a step, median", *(f"{row.step_ms.median:.3f}" for row in rows)),
        ("ms a step, mean", *(f"{row.mean_step_ms:.3f}" for row in rows)),
        ("steps", *(str(row.steps) for row in rows)),
        ("rays", *(f"{row.rays:.0f}" for row in rows)),
        ("marched samples", *(f"{row.marched:.0f}" for row in rows)),
        ("trained samples", *(f"{row.trained:.0f}" for row in rows)),
        ("PSNR at the end", *(f"{row.psnr[-1][1]:.2f}" for row in rows)),
        *(
            (
                f"seconds to {target} dB",
                *("-" if row.reached[target] is None else f"{row.reached[target]:.2f}" for row in rows),
            )
            for target in rows[0].reached
        ),
        *((f"ms, {stage}", *(f"{row.stages.get(stage, 0):.3f}" for row in rows)) for stage in rows[0].stages),
        ("views rendered a second", *(f"{row.frames_per_second:.1f}" for row in rows)),
        ("seconds to get ready", *(f"{row.ready_seconds:.1f}" for row in rows)),
    ]
    output.results().print(
        output.table(title, ("what", *(row.policy for row in rows)), table, right=[r.policy for r in rows])
    )


def _require_known(name: str) -> None:
    if name in BENCHMARKS:
        return
    close = difflib.get_close_matches(name, BENCHMARKS, n=1)
    meant = f" Did you mean `{close[0]}`?" if close else ""
    raise ConfigError(f"there is no benchmark `{name}`.{meant}", hint=f"Benchmarks: {', '.join(BENCHMARKS)}.")


def _print_table(title: str, table: Table) -> None:
    """A row per policy where the terminal is wide enough, else a column per policy."""
    console = output.results()
    rows = [tuple(name for name, _ in table.columns), *table.rows]
    # A cell has a space on either side of it and a line between it and the next.
    width = 1 + sum(3 + max(map(len, cells)) for cells in zip(*rows, strict=True))
    if width > console.width:
        rows = list(zip(*rows, strict=True))
    console.print(output.table(title, rows[0], rows[1:], right=rows[0][1:]))
    for note in table.notes:
        console.print(note, markup=False, soft_wrap=True)


def _summary(outcome: Outcome) -> dict[str, object]:
    from raymine.config import to_json

    return {
        "folder": str(outcome.folder),
        "json": str(outcome.folder / "mining.json"),
        "page": None if outcome.page is None else str(outcome.page),
        "complete": outcome.document.complete,
        "runs": len(outcome.document.runs),
        "summaries": to_json(outcome.document.summaries),
    }
