"""Run a sweep: each trial is one task of a pipeline, so it is placed, retried, recorded and resumed as stages are."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from raymine.errors import RunError
from raymine.files import JSON, UnreadableFile, obstacle, read_json, write_json

from .checkpoints import checkpoint_files, damaged_checkpoints
from .devices import GIB, Place, places
from .optuna_search import OptunaSearch, asked_points, require_optuna
from .plan import Task, code_version, explain
from .prune import PRUNE_KEY, Look
from .run import PIPELINE_LOCK, PipelineResult, State, locked, run_tasks
from .slurm import inside_allocation, slurm_places
from .spec import Pipeline, SceneSpec
from .stages import Result, Site, Stage, scene_stamp
from .sweep_spec import Point, Sweep

DESCRIPTION = "sweep.json"
_RETRIES = 1
_KEPT = ("run", "step", "elapsed", "held_out_psnr", "best_step", "best_held_out_psnr")


@dataclass(frozen=True)
class Trial:
    """How a trial ended. settings: its point. score: by the metric of the sweep; None if it has not finished.

    result: of the run; for a trial that was stopped early, `pruned` has the step, the PSNR (dB) there and why.
    """

    name: str
    settings: Point
    seed: int
    state: State
    why: str
    score: float | None
    result: Result


@dataclass(frozen=True)
class Row:
    """A point and its trials, one for each seed. score: their mean; None unless all have finished."""

    settings: Point
    score: float | None
    spread: float | None
    trials: tuple[Trial, ...] = field(default=())


def trials_of(sweep: Sweep, points: Sequence[Point]) -> list[tuple[str, Point, int]]:
    """Name, settings and seed of every trial of these points."""
    pairs = [(point, seed) for point in points for seed in sweep.seeds]
    return [(f"trial-{i:04d}", point, seed) for i, (point, seed) in enumerate(pairs)]


def tasks_of(sweep: Sweep, points: Sequence[Point], first: int = 0) -> list[Task]:
    """One task for each trial of these points, from the point with the index `first` on."""
    stamp = scene_stamp(sweep.scene, sweep.out, sweep.file)
    trials = trials_of(sweep, points)[first * len(sweep.seeds) :]
    return [_task(sweep, name, point, seed, stamp) for name, point, seed in trials]


def settings_of(sweep: Sweep, point: Point) -> Point:
    """The part of a point that replaces settings of the recipe's config."""
    return {name: value for name, value in point.items() if name not in sweep.options}


def options_of_trial(sweep: Sweep, point: Point, seed: int) -> dict[str, JSON]:
    """Options of `raymine train`, by name."""
    return {**sweep.train, **{name: point[name] for name in point if name in sweep.options}, "seed": seed}


def _task(sweep: Sweep, name: str, point: Point, seed: int, stamp: str) -> Task:
    settings = settings_of(sweep, point)
    rule = {} if sweep.prune is None else {PRUNE_KEY: asdict(sweep.prune)}

    def command(site: Site) -> list[str]:
        # The child parses the same JSON that the key is made of.
        return [json.dumps({**settings, **rule}), sweep.scene, "--out", str(site.run), "--resume"]

    def result(site: Site, printed: JSON) -> Result:
        found = {key: printed.get(key) for key in _KEPT}
        if printed.get("pruned"):
            return {**found, "pruned": printed["pruned"]}
        if any(not isinstance(found[key], int | float) for key in ("held_out_psnr", "best_held_out_psnr")):
            raise RunError(f"{site.run} has no score of its held-out views.")
        return found

    stage = Stage(
        "train",
        needs=(),
        command=command,
        uses=lambda _: [settings, stamp],
        result=result,
        products=_products,
        leftovers=lambda site: damaged_checkpoints(site.run),
        program="trial",
    )
    scene = SceneSpec(name, sweep.scene, options={"train": options_of_trial(sweep, point, seed)})
    return Task(scene, stage, (), sweep.out / name)


def _products(site: Site) -> list[Path]:
    # A trial that was stopped early is not trained on, whatever became of its checkpoints.
    return [] if site.results["train"].get("pruned") else checkpoint_files(site.run)


def plan_sweep(sweep: Sweep) -> list[tuple[str, Point, int, str, str]]:
    """Name, settings, seed, verdict and reason of every trial, without running anything.

    Of a search by Optuna, the trials whose points it has chosen so far.
    """
    require_own_folder(sweep)
    points: Sequence[Point] = asked_points(sweep) if sweep.search == "optuna" else sweep.points
    told = explain(tasks_of(sweep, points), code_version("version"))
    return [(*trial, verdict, why) for trial, (_, verdict, why) in zip(trials_of(sweep, points), told, strict=True)]


def run_sweep(
    sweep: Sweep, *, jobs: int | None = None, where: list[Place] | None = None, tell: Callable[[str], None]
) -> tuple[list[Row], PipelineResult]:
    """Run the trials that have not finished. The rows come best first. tell: receives lines about progress.

    where: the places of trials; None for the hosts of a Slurm allocation, else the devices of this machine. `RunError`
    if the folder is of something else, or if another process uses it.
    """
    require_own_folder(sweep)
    if sweep.search == "optuna":
        require_optuna()
    with locked(sweep.out, "sweep"):
        require_own_folder(sweep)
        write_json(sweep.out / DESCRIPTION, sweep.description, "describe the sweep")
        search = OptunaSearch(sweep) if sweep.search == "optuna" else None
        points = list(sweep.points if search is None else search.points)

        def settle(so_far: PipelineResult) -> None:
            for i, row in enumerate(_points(sweep, points, so_far)):
                if search is not None:
                    search.tell(i, row.score, _stop(row))

        def more(so_far: PipelineResult) -> list[Task]:
            settle(so_far)
            point = None if search is None else search.ask()
            if point is None:
                return []
            points.append(point)
            return tasks_of(sweep, points, len(points) - 1)

        tasks = tasks_of(sweep, points)
        pipeline = Pipeline(
            sweep.file, sweep.out, tuple(t.scene for t in tasks), ("train",), sweep.jobs, _RETRIES, code="version"
        )
        done = run_tasks(
            pipeline, tasks, jobs=jobs, tell=tell, where=where or _where(sweep, jobs), more=more if search else None
        )
        settle(done)
    return sorted(_points(sweep, points, done), key=_rank), done


def _where(sweep: Sweep, jobs: int | None) -> list[Place]:
    """Where trials run: on the hosts of a Slurm allocation, else on the devices of this machine."""
    jobs = jobs or sweep.jobs
    return slurm_places(jobs) if inside_allocation() else places(jobs, memory=(sweep.memory or 0.0) * GIB)


def require_own_folder(sweep: Sweep) -> None:
    """Raise `RunError` if the folder of a sweep is not empty and not of this sweep."""
    fault = obstacle(sweep.out, folder=True)
    if fault:
        raise RunError(f"The folder {sweep.out} of the sweep {fault}.", hint="Give another `out`.")
    if not sweep.out.exists():
        return
    description = sweep.out / DESCRIPTION
    if not description.exists():
        if any(path.name != PIPELINE_LOCK for path in sweep.out.iterdir()):
            raise RunError(
                f"The folder {sweep.out} exists and is not of a sweep; it is left untouched.",
                hint="Give another `out`, or an empty folder.",
            )
        return
    try:
        found = read_json(description)
    except UnreadableFile as error:
        raise RunError(f"{description} {error.what}", hint="Give another `out`.") from error
    if found != json.loads(json.dumps(sweep.description)):
        raise RunError(
            f"The folder {sweep.out} is of another sweep: its scene, options, points or seeds differ.",
            hint="Give another `out`, or the file as it was.",
        )


def _points(sweep: Sweep, points: Sequence[Point], done: PipelineResult) -> list[Row]:
    """A row for each point, in their order."""
    trials = []
    for (name, point, seed), task in zip(trials_of(sweep, points), done.tasks, strict=True):
        result = done.results[name].get("train", {})
        score = None if result.get("pruned") else result.get(sweep.metric)
        trials.append(Trial(name, point, seed, task.state, task.why, score, result))
    rows = []
    for i in range(0, len(trials), len(sweep.seeds)):
        group = tuple(trials[i : i + len(sweep.seeds)])
        scores = [trial.score for trial in group if trial.score is not None]
        whole = len(scores) == len(group)
        spread = statistics.stdev(scores) if whole and len(scores) > 1 else None
        rows.append(Row(group[0].settings, statistics.mean(scores) if whole else None, spread, group))
    return rows


def _stop(row: Row) -> Look | None:
    """Where a point was pruned, with the mean PSNR of its pruned trials there; None if it was not, or still runs."""
    if any(trial.state not in ("done", "skipped") for trial in row.trials):
        return None
    stops = [trial.result["pruned"] for trial in row.trials if trial.result.get("pruned")]
    return Look(stops[0]["step"], statistics.mean(stop["psnr"] for stop in stops)) if stops else None


def _rank(row: Row) -> tuple[bool, bool, float]:
    """Finished points first, best first; then pruned ones, those that got farthest first; then the others."""
    steps = [int(trial.result["pruned"]["step"]) for trial in row.trials if trial.result.get("pruned")]
    return row.score is None, not steps, -(row.score if row.score is not None else max(steps, default=0))
