"""Trains recipes, mining policies and variants of settings for a time each, and scores views at given seconds.

    python benchmarks/bench_variants.py SCENE... [--recipes auto] [--policies none,prune,hard] [--seconds 60]
        [--seeds 3] [--looks 5,10,25,40,60] [--views all] [--hold-out 8] [--device cuda] [--out FILE]
    python benchmarks/bench_variants.py --plan PLAN.json... [--data FOLDER] [--within 540] [--done FILE] [--out FILE]

Training is that of `raymine train --max-seconds`, laid out for the seconds of the run; the clock does not count looks.
Scored are test views, or with `--hold-out N` views that are taken out of the training split: settings are chosen by
these. `--pixels N` scores every N-th pixel of a view, for models that render slowly.

A plan is a list of runs in order of value, as objects with the fields of `Run`; `scene`, `recipe`, `mining` and `seed`
may be lists, of which all combinations are made, seed by seed. Options fill in what a plan leaves out. A run without a
scene is made for each SCENE. A plan names scenes by folder, below `--data` or one level deeper.

Rows are appended the moment they are known: `"row": "look"` for each look, `"row": "run"` when a run has ended,
`"row": "failed"` with the reason if it could not. Runs whose rows are in `--out` or in one of `--done` are not made
again, so the same command continues what was cut. `--within S` starts no run that would end later than S seconds after
the process began, nor one whose scene is not in `--data`. `--list` prints the runs and the seconds they are expected to
take; `--rehearse` makes each of them for 2 seconds at a quarter of the size, to see that all can be made.

Several processes may share one machine: `--share 0/2` and `--share 1/2` make every second run each, and with the same
`--turns FILE` one of them trains while the other opens images and compiles.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from raymine.bench.measure import Hooks, final_rays, train_for
from raymine.bench.rows import append_rows
from raymine.bench.turns import turn
from raymine.config import from_json
from raymine.contracts import Rays, Scene, targets_of
from raymine.engines import engine_for
from raymine.errors import RaymineError
from raymine.evaluate.protocol import protocol_of, quantised
from raymine.evaluate.views import true_image
from raymine.experiment import TrainRequest, evaluation_frames, open_data, train
from raymine.experiment.memory import memory_errors, require_memory
from raymine.experiment.prepare import prepare, split_training
from raymine.experiment.saved.start_from import take
from raymine.files import JSON
from raymine.machine import peak_memory
from raymine.recipes.policies import policy_overrides
from raymine.recipes.techniques import Techniques
from raymine.rundir import describe_environment
from raymine.step import TrainData, TrainState, create_state

SHARES = (0.05, 0.1, 0.17, 0.25, 0.42, 0.5, 0.67, 0.83, 1.0)
"""Shares of the time at which views are scored where no looks are named."""
LISTS = ("seed", "scene", "recipe", "mining")
"""Fields of a planned run that may be lists; the first varies slowest."""


@dataclass(frozen=True)
class First:
    """Training of the same recipe on images that are `downscale` times smaller, from which a run starts."""

    seconds: float
    downscale: int = 2


@dataclass(frozen=True)
class Run:
    """One run as it is asked for. Runs that are equal in all fields but `overhead` are the same run.

    scene: a folder, or "builtin". mining: the recipe's own if empty. seconds: of training, those of `init_from`
    included. looks: training seconds, ascending; shares of the time if none. views: test views to score, 0 for all.
    hold_out: score views held out from training instead of test views, if not 0. pixels: score every N-th pixel. set:
    settings of the config by dotted name. overhead: seconds beside training that the run is expected to take.
    """

    scene: str
    recipe: str = "auto"
    mining: str = ""
    seed: int = 0
    seconds: float = 20.0
    looks: tuple[float, ...] = ()
    views: int = 0
    hold_out: int = 0
    pixels: int = 1
    downscale: int = 1
    name: str = ""
    set: dict[str, JSON] = field(default_factory=dict)
    techniques: Techniques = field(default_factory=Techniques)
    init_from: First | None = None
    overhead: float = 8.0

    def key(self) -> dict[str, Any]:
        """What a row tells of the run, and what says whether a row is of this run."""
        own = {name: value for name, value in asdict(self).items() if name != "overhead"}
        own["techniques"] = {name: value for name, value in own["techniques"].items() if value}
        found: dict[str, Any] = json.loads(json.dumps({**own, "scene": Path(self.scene).name}))
        return found

    @property
    def label(self) -> str:
        words = (self.name, Path(self.scene).name, self.recipe, self.mining, f"seed {self.seed}", f"{self.seconds:g} s")
        return " ".join(word for word in words if word)


class Views:
    """The views that runs are compared on, every `stride`-th pixel of each, in 8 bits as `raymine eval` scores."""

    def __init__(self, data: TrainData, background: tuple[float, float, float], stride: int, device: torch.device):
        self.rig, self.stride, self.device = data.rig, stride, device
        self.backdrop = torch.tensor(background)
        self.truths = []
        for i in range(len(data.rig)):
            colour, mask = true_image(data.images, i, self.backdrop)
            kept = None if mask is None else mask.reshape(-1)[::stride].to(device)
            self.truths.append((quantised(colour.reshape(-1, 3)[::stride].to(device)), kept))

    def score(self, renderer: Any) -> tuple[float, float]:
        """Mean PSNR (dB) over views, and how many whole views are rendered in a second."""
        scores, seconds = [], 0.0
        for index, (truth, kept) in enumerate(self.truths):
            rays, step = self.rig.rays_for_image(index), self.stride
            parts = {name: part[::step].contiguous() for name, part in vars(rays).items() if part is not None}
            some, backdrop = Rays(**parts), self.backdrop.to(self.device)
            self.wait()
            started = time.perf_counter()
            colour = renderer.render(some, backdrop).colour
            self.wait()
            seconds += time.perf_counter() - started
            squared = (quantised(colour.nan_to_num(nan=0.0)) - truth).double().square()
            mean = (squared if kept is None else squared[kept]).mean()
            scores.append(float(-10 * torch.log10(mean)))
        return sum(scores) / len(scores), len(scores) / (seconds * self.stride)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measured(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Train one run, append a row at each look, and return the row of the run."""
    started = time.perf_counter()
    _forget_peak()
    with tempfile.TemporaryDirectory(prefix="raymine-variants-") as folder:
        request = TrainRequest(
            run.scene,
            run.recipe,
            max_seconds=run.seconds,
            seed=run.seed,
            device=options.device,
            downscale=run.downscale,
            hold_out=run.hold_out,
            overrides={**(policy_overrides(run.mining) if run.mining else {}), **run.set},
            techniques=run.techniques,
            evaluate_views=0,
        )
        first = 0.0
        if run.init_from is not None:
            small, out = run.init_from, Path(folder) / "first"
            smaller = replace(request, max_seconds=small.seconds, downscale=run.downscale * small.downscale, out=out)
            with turn(options.turns):
                first = train(smaller).elapsed
            request = replace(request, init_from=out, max_seconds=run.seconds - first)
        return {**_trained(run, request, first, options), "wall": round(time.perf_counter() - started, 1)}


def _trained(run: Run, request: TrainRequest, first: float, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a run. first: training seconds that were spent before it, on smaller images."""
    prepared = prepare(request)
    scene, device, config = prepared.scene, prepared.device, prepared.config.train
    trained, held_out = split_training(scene, run.hold_out)
    shown = held_out if run.hold_out else evaluation_frames(scene, run.views or None)
    if not shown:
        raise RaymineError(f"The scene {run.scene} has no test views to score.", hint="Hold training views out.")
    require_memory(config, scene.bounds, device)
    depths, background = "depth" in targets_of(config.loss), scene.background or (0.0, 0.0, 0.0)
    with (
        memory_errors(device),
        open_data(scene, trained, device, None, depths=depths) as data,
        open_data(scene, shown, device, None) as test,
    ):
        views = Views(test.train, background, run.pixels, device)
        began = time.perf_counter()
        state = create_state(config, data.train, seed=run.seed, device=device)
        if prepared.start is not None:
            take(state, prepared.start, tuple(data.bank.digests))
        engine = engine_for(state, data.train)
        engine.warm_up()
        ready = time.perf_counter() - began
        rates: list[float] = []

        def look(_: TrainState, elapsed: float) -> tuple[float, float]:
            psnr, rate = views.score(engine.renderer())
            rates.append(rate)
            at = round(first + elapsed, 2), round(psnr, 3)
            found = {"seconds": at[0], "step": state.step, "psnr": at[1], "environment": describe_environment(device)}
            append_rows(options.out, [{"benchmark": "variants", "row": "look", "run": run.key(), **found}])
            return at

        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        budget = request.max_seconds or 0.0
        hooks = Hooks(engine.advance, look, synchronise=views.wait)
        with turn(options.turns):
            require_time(options, budget)
            log = train_for(state, budget, hooks, _shares(run, first, budget))
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory()
        if len(rates) == 1:
            # The first look loads kernels.
            rates.append(views.score(engine.renderer())[1])
        last = log.reports[-max(1, len(log.reports) // 10) :]
        return {
            "benchmark": "variants", "row": "run", "run": run.key(), "scene": Path(run.scene).name,
            **_size(scene, trained), "recipe": prepared.config.recipe, "policy": config.mining.policy,
            "protocol": _protocol(run, scene, shown), "engine": engine.name, "seconds": round(first + log.elapsed, 2),
            "init_seconds": round(first, 2), "steps": len(log.reports),
            "step_ms": round(1e3 * log.elapsed / len(log.reports), 4), "rays": round(final_rays(log)),
            "marched": round(sum(r.marched for r in last) / len(last)),
            "trained": round(sum(r.trained for r in last) / len(last)), "psnr": log.looks,
            "frames_per_second": round(rates[-1], 3), "memory": memory,
            "memory_of": "device" if device.type == "cuda" else "process", "ready_seconds": round(ready, 2),
            "commit": options.commit or describe_environment(device).commit,
            "environment": describe_environment(device),
        }  # fmt: skip


def seconds_left(options: argparse.Namespace) -> float:
    """Of those that the process may take."""
    if options.within is None:
        return math.inf
    return float(options.within) - (time.time() - psutil.Process().create_time())


def require_time(options: argparse.Namespace, seconds: float) -> None:
    """`RaymineError` if a training that begins now would end too late: another process may have trained meanwhile."""
    if seconds > seconds_left(options):
        raise RaymineError(f"{seconds_left(options):.0f} s are left.", hint="Give more time, or the rest of the runs.")


def _shares(run: Run, first: float, budget: float) -> tuple[float, ...]:
    """When to look, as shares of the training that is left after `first` seconds; the last is its end."""
    if not run.looks:
        return SHARES
    return (*(share for share in ((at - first) / budget for at in run.looks) if 0 < share < 1), 1.0)


def _size(scene: Scene, trained: Sequence[int]) -> dict[str, int]:
    """Sizes of the images that are trained on; the largest of them, in pixels."""
    cameras = [scene.cameras[scene.frames[i].camera] for i in trained]
    largest = max(cameras, key=lambda camera: camera.width * camera.height)
    return {"width": largest.width, "height": largest.height, "train_views": len(trained)}


def _protocol(run: Run, scene: Scene, shown: Sequence[int]) -> str:
    """What was scored, in words."""
    pixels = "all pixels" if run.pixels == 1 else f"every {run.pixels}th pixel"
    if run.hold_out:
        return f"{len(shown)} views held out from training, {pixels}, 8 bits, mean over images"
    sentence = protocol_of(scene, scene.frames[shown[0]].split, len(shown)).sentence()
    return sentence if run.pixels == 1 else f"{sentence} But {pixels}."


def _forget_peak() -> None:
    """Let the peak of main memory count from now, where the system can (Linux); else it is that of the process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def planned(options: argparse.Namespace) -> list[Run]:
    """The runs that are asked for, in order."""
    entries: list[dict[str, Any]] = [{}]
    if options.plan:
        entries = [entry for path in options.plan for entry in json.loads(path.read_text())]
    given: dict[str, Any] = {
        "recipe": options.recipes.split(","), "mining": options.policies.split(","), "seed": list(range(options.seeds)),
        "seconds": options.seconds, "looks": [float(at) for at in options.looks.split(",") if at],
        "views": 0 if options.views == "all" else int(options.views), "hold_out": options.hold_out,
        "pixels": options.pixels, "downscale": options.downscale,
    }  # fmt: skip
    runs = []
    for entry in entries:
        asked = {"scene": options.scenes, **given, **entry}
        if not asked["scene"]:
            raise RaymineError(f"The run {entry} names no scene, and none was given.", hint="Name scenes.")
        lists = [asked[name] if isinstance(asked[name], list) else [asked[name]] for name in LISTS]
        for values in itertools.product(*lists):
            one = {**asked, **dict(zip(LISTS, values, strict=True))}
            one["scene"] = _found(one["scene"], options.data)
            runs.append(from_json(Run, one, "run"))
    if options.rehearse:
        runs = [rehearsal(run) for run in runs]
    once: dict[str, Run] = {}
    for run in runs:
        once.setdefault(json.dumps(run.key(), sort_keys=True), run)
    return list(once.values())


def rehearsal(run: Run) -> Run:
    """The same run, but short and small."""
    first = run.init_from and replace(run.init_from, seconds=0.5)
    small: dict[str, Any] = {"downscale": 4 * run.downscale, "views": 2, "hold_out": min(run.hold_out, 2), "pixels": 7}
    return replace(run, seconds=2.0, looks=(1.0,), init_from=first, overhead=8.0, **small)


def _found(scene: str, data: Path | None) -> str:
    """The folder of a scene that is named by its last part; as it stands where there is none."""
    if data is None or scene == "builtin":
        return scene
    return str(next(iter(sorted((*data.glob(scene), *data.glob(f"*/{scene}")))), data / scene))


def rows_of(paths: Sequence[Path | None]) -> Iterator[dict[str, Any]]:
    """Rows of earlier calls. A line that was cut counts for nothing."""
    for path in paths:
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            with suppress(ValueError):
                row = json.loads(line)
                if row.get("benchmark") == "variants" and "run" in row:
                    yield row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each combination, PSNR as the mean over its seeds, and the lowest and the highest one."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps({**row["run"], "seed": None}, sort_keys=True), []).append(row)
    lines = [
        "| scene | recipe | policy | change | seeds | PSNR after seconds | ms a step | steps | frames/s | MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group in groups.values():
        row, run = group[0], group[0]["run"]
        marks = run["looks"] or [at for at, _ in row["psnr"]]
        looks = []
        for mark in (*[at for at in marks if at < run["seconds"]], run["seconds"]):
            # A look comes when a burst of steps has ended, so a little later than it was asked for.
            found = [next((db for at, db in each["psnr"] if at >= mark), each["psnr"][-1][1]) for each in group]
            spread = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
            looks.append(f"{mark:g}: {sum(found) / len(found):.2f}{spread}")

        def mean(name: str, own: list[dict[str, Any]] = group) -> float:
            return float(sum(each[name] for each in own) / len(own))

        cells = (
            f"{row['scene']} {row['width']}x{row['height']}", row["recipe"], row["policy"], run["name"],
            str(len(group)), "; ".join(looks), f"{mean('step_ms'):.3g}", f"{mean('steps'):.0f}",
            f"{mean('frames_per_second'):.3g}", f"{(row['memory'] or 0) / 2**20:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", metavar="SCENE")
    parser.add_argument("--plan", type=Path, nargs="+", default=[])
    parser.add_argument("--data", type=Path, help="the folder that holds the scenes a plan names")
    parser.add_argument("--recipes", "--recipe", default="auto")
    parser.add_argument("--policies", default="")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--looks", default="")
    parser.add_argument("--views", default="all")
    parser.add_argument("--hold-out", type=int, default=0)
    parser.add_argument("--pixels", type=int, default=1)
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", help="to record where the code is a copy without its history")
    parser.add_argument("--within", type=float, help="seconds that the process may take")
    parser.add_argument(
        "--done", type=Path, action="append", default=[], help="rows of an earlier call; may be repeated"
    )
    parser.add_argument("--share", default="0/1", help="K/N: every N-th run, from number K on")
    parser.add_argument("--turns", type=Path, help="a lock file that processes hold while they train")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        number, processes = (int(part) for part in options.share.split("/"))
        runs = planned(options)[number::processes]
    except (RaymineError, ValueError) as error:
        parser.error(str(error))
    earlier = [row for row in rows_of([options.out, *options.done]) if row["row"] == "run"]
    done = [row["run"] for row in earlier]
    left = [run for run in runs if run.key() not in done]
    if options.list:
        for run in left:
            print(f"{run.seconds + run.overhead:6.0f} s  {run.label}")
        print(f"{sum(run.seconds + run.overhead for run in left):6.0f} s  {len(left)} of {len(runs)} runs")
        return 0
    made, failed = [], 0
    for run in left:
        if options.data is not None and run.scene != "builtin" and not Path(run.scene).exists():
            print(f"left out: {run.label}; the scene is not in {options.data}", flush=True)
            continue
        if run.seconds + run.overhead > seconds_left(options):
            print(f"left out: {run.label}; {max(0, seconds_left(options)):.0f} s are left", flush=True)
            continue
        try:
            row = measured(run, options)
        except Exception as error:
            # One run that fails, in whatever way, must not take the time of those after it.
            failed += 1
            print(f"failed: {run.label}: {type(error).__name__}: {error}", flush=True)
            row = {
                "benchmark": "variants",
                "row": "failed",
                "run": run.key(),
                "error": f"{type(error).__name__}: {error}",
            }
            append_rows(options.out, [row])
            continue
        append_rows(options.out, [row])
        made.append(row)
        looks = " ".join(f"{at:g}s:{value:.2f}" for at, value in row["psnr"])
        print(
            f"{run.label}: {looks}  {row['step_ms']} ms, {row['steps']} steps, {row['engine']}, "
            f"{row['frames_per_second']} frames/s, trained {row['trained']} of {row['marched']}, {row['rays']} rays, "
            f"{(row['memory'] or 0) >> 20} MiB, ready {row['ready_seconds']} s, in all {row['wall']} s",
            flush=True,
        )
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    keys = [run.key() for run in runs]
    print(table([row for row in earlier if row["run"] in keys] + made), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
