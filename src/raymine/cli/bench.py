"""`raymine bench`: benchmarks of training, of a training step and of single ops on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from . import output
from .imports import find_own_modules

if TYPE_CHECKING:
    from raymine.bench import OpRow, Outcome, StepRow, WallRow
    from raymine.bench.report.table import Table


@dataclass(frozen=True)
class Bench:
    """Run a benchmark. `mining`: compare mining policies at equal training time. `step`: time a training step. `ops`:
    time each op on each backend against plain torch. `wall`: time whole commands, from start to exit. Help on one:
    `raymine bench mining --help`."""


@dataclass(frozen=True)
class BenchMining:
    """Compare mining policies at equal training time. Needs matplotlib for its page."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin` for the scene that comes with raymine."""
    policies: str = "none,prune,hard"
    """Policies, separated by commas: none, prune, hard, hard:{published,poisson,systematic,multinomial,topk,biased}."""
    seconds: float = 60.0
    """Seconds of training per run; loading, compiling and evaluating do not count."""
    seeds: int = 1
    """Runs per policy, each with another seed."""
    views: int = 25
    """Evaluate at most this many held-out views, evenly spread."""
    recipe: str = "auto"
    """What to train: a registered recipe, or package.module:function for your own, which is then imported. `auto` is
    the recipe that `train` would choose for the scene."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to train on."""
    downscale: int = 1
    """Divide the size of every image by this."""
    out: Path | None = None
    """Folder for the results; by default the next free `runs/bench-mining-SCENE-N`."""
    resume: bool = False
    """Complete the benchmark in --out; start it if there is none."""
    no_page: bool = False
    """Do not write the page mining.html, which needs matplotlib."""
    json: bool = False
    """Print the results as one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.bench import MiningRequest, bench_mining, table_of

        from .bench_progress import BenchProgress

        find_own_modules((), self.recipe)
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
            document = outcome.document
            recipe, where = document.setting.recipe, document.environment.device
            title = f"{self.scene}, {recipe}, {self.seconds:g} s of training each, {where}"
            _print_table(title, table_of(document))
        output.say(f"Results: {outcome.folder / 'mining.json'}")
        if outcome.page is not None:
            output.say(f"Page: {outcome.page}")
        return 0


@dataclass(frozen=True)
class BenchStep:
    """Time a training step of each policy, after some seconds of training."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin` for the scene that comes with raymine."""
    policies: str = "none,prune,hard"
    """Policies, separated by commas: none, prune, hard, hard:{published,poisson,systematic,multinomial,topk,biased}."""
    seconds: float = 60.0
    """Seconds of training per policy; loading, compiling and evaluating do not count."""
    views: int = 25
    """Evaluate at most this many held-out views, evenly spread."""
    recipe: str = "auto"
    """What to train: a registered recipe, or package.module:function for your own, which is then imported. `auto` is
    the recipe that `train` would choose for the scene."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to train on."""
    downscale: int = 1
    """Divide the size of every image by this."""
    out: Path | None = None
    """File to append rows to."""
    json: bool = False
    """Print the results as one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.bench import StepRequest, bench_step
        from raymine.config import to_json

        from .bench_progress import StepProgress

        find_own_modules((), self.recipe)
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
            where = rows[0].environment.device
            _print_steps(f"{self.scene}, {rows[0].recipe}, {self.seconds:g} s of training each, {where}", rows)
        if self.out is not None:
            output.say(f"Rows: {self.out}")
        return 0


@dataclass(frozen=True)
class BenchOps:
    """Time each op on each backend against plain torch."""

    ops: str | None = None
    """Names separated by commas, such as `hash_grid,march`; all if not given."""
    samples: int | None = None
    """Samples per batch; 2^18 on CUDA and 2^14 on a CPU if not given."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to run ops on."""
    out: Path | None = None
    """File to append rows to."""
    json: bool = False
    """Print the results as one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.bench import OpsRequest, bench_ops
        from raymine.config import to_json

        from .bench_progress import StepProgress

        request = OpsRequest(ops=self.ops, samples=self.samples, device=self.device, out=self.out)
        with StepProgress() as progress:
            rows = bench_ops(request, progress.show)
        if self.json:
            output.emit_json([to_json(row) for row in rows])
        else:
            _print_ops(f"ops on {rows[0].environment.device}", rows)
        if self.out is not None:
            output.say(f"Rows: {self.out}")
        return 0


@dataclass(frozen=True)
class BenchWall:
    """Time `train`, `eval` and `render` as whole commands, from the start of the process to its exit."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin` for the scene that comes with raymine."""
    seconds: float = 1.5
    """Seconds of training, which is a part of what `train` takes."""
    repeats: int = 3
    """Times that each command runs. The first may compile kernels and decode images; later ones find them cached."""
    frames: int = 60
    """Frames of the orbit that `render` makes; 0 leaves `render` out."""
    recipe: str = "auto"
    """What to train: a registered recipe, or package.module:function for your own, which is then imported. `auto` is
    the recipe that `train` would choose for the scene."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to train on."""
    downscale: int = 1
    """Divide the size of every image by this."""
    out: Path | None = None
    """File to append rows to."""
    json: bool = False
    """Print the results as one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.bench import WallRequest, bench_wall
        from raymine.config import to_json

        from .bench_progress import StepProgress

        request = WallRequest(
            scene=self.scene,
            seconds=self.seconds,
            recipe=self.recipe,
            device=self.device,
            downscale=self.downscale,
            repeats=self.repeats,
            frames=self.frames,
            out=self.out,
        )
        with StepProgress() as progress:
            rows = bench_wall(request, progress.show)
        if self.json:
            output.emit_json([to_json(row) for row in rows])
        else:
            where = rows[0].environment.device
            _print_wall(f"{self.scene}, {rows[-1].recipe}, {self.seconds:g} s of training, {where}", rows)
        if self.out is not None:
            output.say(f"Rows: {self.out}")
        return 0


BENCHMARKS: dict[str, type] = {"mining": BenchMining, "step": BenchStep, "ops": BenchOps, "wall": BenchWall}
"""The benchmarks, by the word after `raymine bench`."""


def _print_steps(title: str, rows: list[StepRow]) -> None:
    """Print a table with a column per policy."""
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
        *(
            (name, *("-" if value is None else f"{value / 2**20:.0f}" for value in values))
            for name, values in (
                ("MiB of a step", [row.step_memory for row in rows]),
                ("MiB of the same step, unfused", [row.plain_step_memory for row in rows]),
            )
        ),
        ("seconds to compile and load", *(f"{row.ready_seconds:.1f}" for row in rows)),
    ]
    output.results().print(
        output.table(title, ("what", *(row.policy for row in rows)), table, right=[r.policy for r in rows])
    )


def _print_wall(title: str, rows: list[WallRow]) -> None:
    """Print a table of seconds with a column for the first time and one for the median of the later times."""
    from statistics import median

    def cells(what: str, by_repeat: list[float]) -> tuple[str, ...]:
        later = by_repeat[1:]
        return what, f"{by_repeat[0]:.2f}", f"{median(later):.2f}" if later else "-"

    found: list[tuple[str, ...]] = []
    for command in dict.fromkeys(row.command for row in rows):
        own = [row for row in rows if row.command == command]
        name = "floor: imports and device" if command == "floor" else f"raymine {command}"
        found.append(cells(name, [row.seconds for row in own]))
        if command == "train":
            found.append(cells("  until the first step", [row.first_step or 0.0 for row in own]))
            stages = dict.fromkeys(stage for row in own for stage in row.stages)
            found += [cells(f"  {stage}", [row.stages.get(stage, 0.0) for row in own]) for stage in stages]
    columns = ("seconds", "first time", "then")
    output.results().print(output.table(title, columns, found, right=columns[1:]))


def _print_ops(title: str, rows: list[OpRow]) -> None:
    """Print a table with a row per op, direction, shape and backend. Repeated op and shape cells stay empty."""
    cells: list[tuple[str, ...]] = []
    before: tuple[str, ...] = ()
    for row in rows:
        what = (
            row.op if row.direction == "forward" else f"{row.op}, {row.direction}",
            ", ".join(f"{size:,} {name}" for name, size in row.shapes.items()),
        )
        figures = (
            row.backend,
            f"{row.median_ms:.3f}",
            output.number(row.gbytes_per_s),
            f"{row.ratio_to_reference:.2f}",
        )
        cells.append((*(("", "") if what == before else what), *figures))
        before = what
    columns = ("op", "shape", "backend", "ms", "GB/s", "x reference")
    output.results().print(output.table(title, columns, cells, right=columns[3:]))


def _print_table(title: str, table: Table) -> None:
    """Print a row per policy if the terminal is wide enough, else a column per policy."""
    console = output.results()
    rows = [tuple(name for name, _ in table.columns), *table.rows]
    # A cell has a space on each side, and a line separates it from the next.
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
