"""The mining benchmark: train every policy with every seed for the same time, one after another.

Seeds are the outer loop and policies the inner one, so that a machine that slows down affects all policies alike.
Results are written after every run. If a benchmark is killed, its finished runs are kept, and `resume` does the rest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from raymine.config import differences, replace_fields, to_json
from raymine.contracts import Scene, targets_of
from raymine.engines import engine_for, renderer_for
from raymine.errors import ConfigError, MissingExtraError, RunError, SceneError, option
from raymine.evaluate import evaluate_views
from raymine.evaluate.quick import quick_psnr
from raymine.experiment import TrainRequest, evaluation_frames, open_data
from raymine.experiment.memory import memory_errors, require_memory
from raymine.experiment.prepare import KERNELS, Prepared, prepare
from raymine.files import JSON, obstacle, remove_stale_temps, resource_error
from raymine.recipes import AUTO
from raymine.rundir import describe_environment
from raymine.rundir.folder import slug
from raymine.rundir.lock import RunLock, is_lock_file
from raymine.rundir.manifest import utc_now
from raymine.step import TrainConfig, TrainData, TrainState, create_state

from .derive import summarise_policies
from .measure import Hooks, Log, final_rays, final_share, step_time, trace_of, train_for
from .memory import step_memory
from .policies import BenchPolicy, check_request, parse_policies
from .probe import Probe, probe
from .records import NAME, BenchRun, Document, Look, Setting, Shapes, read_document, write_document
from .snapshots import write_pictures

_LOCK = ".lock"
MOST_SEEDS = 1000


@dataclass(frozen=True)
class MiningRequest:
    """A mining benchmark as the user asks for it.

    policies: names separated by commas. seconds: of training per run. seeds: runs per policy. views: the most held-out
    views to evaluate. out: the folder; None uses the next free `<runs_root>/bench-mining-<scene>-<n>`. resume: complete
    the benchmark in `out`. page: also write `mining.html`. overrides: fields of the recipe's config to replace for
    every policy, by dotted name. command: the command line, recorded in the results.
    """

    scene: str | Path
    policies: str = "none,prune,hard"
    seconds: float = 60.0
    seeds: int = 1
    recipe: str = AUTO
    device: str = "auto"
    downscale: int = 1
    views: int = 25
    out: Path | None = None
    resume: bool = False
    page: bool = True
    overrides: Mapping[str, JSON] = field(default_factory=dict)
    runs_root: Path = Path("runs")
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_request(self.policies, self.seconds, self.views)
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise ConfigError(f"{option('seeds')} must be between 1 and {MOST_SEEDS}, got {self.seeds}.")
        if self.resume and self.out is None:
            raise ConfigError(f"{option('resume')} needs {option('out')}, the folder of the benchmark to continue.")


@dataclass(frozen=True)
class Outcome:
    """The folder and the content of the results; `page` is None if no page was asked for."""

    folder: Path
    document: Document
    page: Path | None


class BenchObserver(Protocol):
    """Receives the progress of a benchmark. Methods should be fast."""

    def loading(self, what: str, done: int, total: int) -> None:
        """Images or kernels are being loaded."""

    def opened(self, folder: Path) -> None:
        """The folder of the results is known; called before the first run."""

    def run_started(self, number: int, total: int, policy: str, seed: int) -> None:
        """Run `number` (from 1) of `total` starts."""

    def trained(self, seconds: float) -> None:
        """The current run has trained for `seconds`."""

    def looked(self, look: Look) -> None:
        """The current run was evaluated."""

    def run_ended(self, run: BenchRun) -> None:
        """A run has ended and its results are written."""


class SilentBenchObserver:
    """An observer that does nothing; a base class for observers that implement a few methods."""

    def loading(self, what: str, done: int, total: int) -> None:
        return None

    def opened(self, folder: Path) -> None:
        return None

    def run_started(self, number: int, total: int, policy: str, seed: int) -> None:
        return None

    def trained(self, seconds: float) -> None:
        return None

    def looked(self, look: Look) -> None:
        return None

    def run_ended(self, run: BenchRun) -> None:
        return None


def require_page_tools() -> None:
    """Raise `MissingExtraError` if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            "matplotlib", "report", f"The page mining.html ({option('page', False)} goes without it)"
        )


def bench_mining(request: MiningRequest, observer: BenchObserver | None = None) -> Outcome:
    """Run the benchmark, or complete it. Inputs are checked before anything is trained or created."""
    observer = observer or SilentBenchObserver()
    if request.page:
        require_page_tools()
    policies = parse_policies(request.policies)
    prepared = prepare(
        TrainRequest(
            request.scene,
            request.recipe,
            max_seconds=request.seconds,
            device=request.device,
            downscale=request.downscale,
            overrides=request.overrides,
        )
    )
    frames = evaluation_frames(prepared.scene, request.views)
    if not frames:
        raise SceneError(
            f"The scene {request.scene} has no held-out views (test or val), so there is no PSNR to compare.",
            hint="Give a scene with a test split; readers hold out every 8th image where the format has none.",
        )
    with contextlib.ExitStack() as stack:
        bench = _MiningBench(request, policies, prepared, frames)
        stored = bench.stored(stack)
        with memory_errors(prepared.device):
            bench.load(stack, observer, () if stored is None else stored.runs)
            folder, document = bench.begin(stack, stored)
            observer.opened(folder)
            document = bench.run(folder, document, observer)
        if not request.page:
            return Outcome(folder, document, None)
        from .report.page import write_page

        return Outcome(folder, document, write_page(folder, document))


class _MiningBench:
    """One benchmark in progress: its configs, its data and its results."""

    def __init__(
        self, request: MiningRequest, policies: Sequence[BenchPolicy], prepared: Prepared, frames: tuple[int, ...]
    ) -> None:
        self.request = request
        self.scene: Scene = prepared.scene
        self.device: torch.device = prepared.device
        self.frames = frames
        base = prepared.config.train
        self.configs: dict[str, TrainConfig] = {p.name: replace_fields(base, p.overrides) for p in policies}
        self.setting = Setting(
            scene=prepared.config.scene,
            scene_digest=prepared.digest,
            recipe=prepared.config.recipe if request.recipe == AUTO else request.recipe,
            downscale=request.downscale,
            seconds=request.seconds,
            policies=tuple(self.configs),
            views=len(frames),
        )
        self.environment = describe_environment(self.device)
        self.data: TrainData
        self.views: TrainData

    def stored(self, stack: contextlib.ExitStack) -> Document | None:
        """Read and lock the benchmark to continue; None for a new one. `RunError` if `out` must not be written."""
        out = self.request.out
        fault = None if out is None else obstacle(out, folder=True)
        if fault:
            raise RunError(
                f"{option('out', out)} {fault}; a benchmark needs a folder.", hint=f"Give another {option('out')}."
            )
        if out is None or not out.exists() or all(is_lock_file(p, _LOCK) for p in out.iterdir()):
            return None
        if not (out / NAME).is_file():
            raise RunError(f"{option('out', out)} exists and is no mining benchmark; it is left untouched.")
        if not self.request.resume:
            raise RunError(
                f"{option('out', out)} already holds a benchmark.",
                hint=f"Continue it with {option('resume', True)}, or give another.",
            )
        stack.callback(RunLock.acquire(out / _LOCK).release)
        remove_stale_temps(out)
        document = read_document(out)
        self._require_same(document)
        return document

    def _require_same(self, document: Document) -> None:
        """Raise `ConfigError` if settings, code or machine differ: such results must not be in one table."""
        before = {"setting": document.setting, "environment": document.environment, "configs": document.configs}
        after = {"setting": self.setting, "environment": self.environment, "configs": self.configs}
        changed = differences(to_json(before), to_json(after), stored_in="in the benchmark")
        if changed:
            raise ConfigError(
                f"{self.request.out} was measured under other conditions: {'; '.join(changed)}.",
                hint=f"Continue it under the same conditions (only {option('seeds')} may grow), or give another "
                f"{option('out')}.",
            )
        if self.request.seeds < document.seeds:
            raise ConfigError(
                f"{self.request.out} has {document.seeds} seeds; {option('seeds', self.request.seeds)} is fewer."
            )

    def load(self, stack: contextlib.ExitStack, observer: BenchObserver, done: Sequence[BenchRun]) -> None:
        """Load the images, and the kernels that the missing runs need."""
        for config in self.configs.values():
            require_memory(config, self.scene.bounds, self.device)
        train = self.scene.of_split("train")
        depths = any("depth" in targets_of(config.loss) for config in self.configs.values())
        opened = open_data(self.scene, train, self.device, observer.loading, depths=depths)
        self.data = stack.enter_context(opened).train
        self.views = stack.enter_context(open_data(self.scene, self.frames, self.device, observer.loading)).train
        missing = {policy for policy, _ in self.missing(done)}
        for number, name in enumerate(sorted(missing)):
            observer.loading(KERNELS, number, len(missing))
            state = create_state(self.configs[name], self.data, seed=0, device=self.device)
            engine_for(state, self.data).warm_up()

    def missing(self, done: Sequence[BenchRun]) -> list[tuple[str, int]]:
        """The (policy, seed) pairs to train, in order: all policies of a seed before the next seed."""
        have = {(run.policy, run.seed) for run in done}
        every = [(name, seed) for seed in range(self.request.seeds) for name in self.configs]
        return [pair for pair in every if pair not in have]

    def begin(self, stack: contextlib.ExitStack, stored: Document | None) -> tuple[Path, Document]:
        """Create and lock the folder and write a first `mining.json`, unless the benchmark is continued."""
        if stored is not None and self.request.out is not None:
            return self.request.out, replace(stored, seeds=self.request.seeds)
        folder = _make_folder(self.request, slug(Path(self.setting.scene).name))
        stack.callback(RunLock.acquire(folder / _LOCK).release)
        state = create_state(next(iter(self.configs.values())), self.data, seed=0, device=self.device)
        height, width = (int(v) for v in self.data.images.sizes[0])
        shapes = Shapes(
            train_images=len(self.data.rig),
            held_out_views=len(self.views.rig),
            width=width,
            height=height,
            parameters=sum(p.numel() for p in state.module.parameters()),
            samples_per_step=state.config.batch.samples,
        )
        document = Document(
            setting=self.setting,
            seeds=self.request.seeds,
            shapes=shapes,
            environment=self.environment,
            command=self.request.command,
            started=utc_now(),
            complete=False,
            configs={name: to_json(config) for name, config in self.configs.items()},
        )
        write_document(folder, document)
        return folder, document

    def run(self, folder: Path, document: Document, observer: BenchObserver) -> Document:
        """Train the missing runs; `mining.json` is written after each."""
        missing = self.missing(document.runs)
        total = len(self.configs) * self.request.seeds
        for policy, seed in missing:
            observer.run_started(len(document.runs) + 1, total, policy, seed)
            run = self._one(folder, policy, seed, observer)
            document = self._with(document, (*document.runs, run))
            write_document(folder, document)
            observer.run_ended(run)
        if not missing:
            document = self._with(document, document.runs)
            write_document(folder, document)
        return document

    def _with(self, document: Document, runs: tuple[BenchRun, ...]) -> Document:
        summaries = summarise_policies(runs, self.setting.policies, self.setting.seconds)
        return replace(document, runs=runs, summaries=summaries, complete=not self.missing(runs))

    def _one(self, folder: Path, policy: str, seed: int, observer: BenchObserver) -> BenchRun:
        state = create_state(self.configs[policy], self.data, seed=seed, device=self.device)
        engine = engine_for(state, self.data)
        seen: list[Probe] = []

        def look(state: TrainState, seconds: float) -> Look:
            seen[:] = [probe(state, self.data)]
            psnr = quick_psnr(engine.renderer(), self.views, self._background)
            found = Look(seconds, state.step, None if math.isnan(psnr) else psnr, seen[0].diagnosis)
            observer.looked(found)
            return found

        synchronise = torch.cuda.synchronize if self.device.type == "cuda" else _nothing
        log = train_for(state, self.setting.seconds, Hooks(engine.advance, look, observer.trained, synchronise))
        return self._finish(folder, policy, state, log, seen[0])

    def _finish(self, folder: Path, policy: str, state: TrainState, log: Log[Look], last: Probe) -> BenchRun:
        """Evaluate all pixels, measure the memory of a step and write pictures."""
        scores = evaluate_views(renderer_for(state), self.views.rig, self.views.images, background=self._background)
        pictures = write_pictures(state, self.views, folder, policy) if state.seed == 0 else {}
        return BenchRun(
            policy=policy,
            seed=state.seed,
            seconds=log.elapsed,
            steps=len(log.reports),
            skipped=sum(not report.finite for report in log.reports),
            step_ms=step_time(log),
            rays=final_rays(log),
            share=final_share(log),
            cpu_share=log.cpu_seconds / log.elapsed,
            psnr=scores.psnr if math.isfinite(scores.psnr) else None,
            ssim=scores.ssim if math.isfinite(scores.ssim) else None,
            memory=step_memory(state, self.data),
            looks=tuple(log.looks),
            trace=trace_of(log),
            ray=last.ray,
            horizons=tuple(log.horizons),
            pictures=pictures,
        )

    @property
    def _background(self) -> tuple[float, float, float]:
        return self.scene.background or (0.0, 0.0, 0.0)


def _nothing() -> None:
    return None


def _make_folder(request: MiningRequest, scene: str) -> Path:
    """Create the folder of the benchmark: the one asked for, or the next free one."""
    try:
        if request.out is not None:
            request.out.mkdir(parents=True, exist_ok=True)
            return request.out
        request.runs_root.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = request.runs_root / f"bench-mining-{scene}-{number}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
            number += 1
    except OSError as error:
        raise resource_error(error, "create the folder of the benchmark", request.out or request.runs_root) from error
