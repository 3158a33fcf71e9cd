"""`train`: check the request, load the data, create or reopen the run folder, and start the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from raymine import checkpoint, recipes
from raymine.config import RunConfig, allowing, differences, identity, model_digest
from raymine.contracts import Scene, targets_of
from raymine.engines import Engine, compile_ahead, engine_for
from raymine.errors import ConfigError, RunError, option
from raymine.evaluate.hard_images import ImageErrors
from raymine.evaluate.quick import EvalSplit, QuickEvaluation, QuickScore
from raymine.files import JSON
from raymine.kernels.threads import using_threads
from raymine.pixels import PixelSampler
from raymine.rays import CameraRig
from raymine.rundir import Manifest, RunDir, check_target, describe_environment, register
from raymine.rundir.folder import slug
from raymine.rundir.manifest import utc_now
from raymine.scenes.bank import ImageBank
from raymine.scenes.names import training_names
from raymine.step import TrainData, TrainState, create_state
from raymine.step.distributed.meeting import Notes
from raymine.step.distributed.ranks import SOLO, Ranks
from raymine.step.hardness import hard_view

from .drive import Limits
from .loop import Loop, LoopSetup
from .memory import memory_errors, memory_limit, require_memory
from .observers import Event, Observer, Observers, SilentObserver, StartInfo
from .prepare import (
    KERNELS,
    LoadProgress,
    Prepared,
    evaluation_frames,
    open_data,
    prepare,
    resolve_device,
    split_training,
)
from .request import RunResult, TrainRequest
from .saved.loopstate import LoopState
from .saved.restore import restore_loop, restore_state
from .saved.start_from import Taken, take
from .several import Leader, facts_of, together
from .stopwatch import Stopwatch
from .watchers.companions import Companions
from .watchers.guard import ImageGuard
from .watchers.journal import Journal
from .watchers.manifest_writer import ManifestWriter
from .watchers.pose_watch import PoseWatch

WarmUp = Callable[[Engine], None]

_SHORT_SECONDS, _SHORT_STEPS = 10.0, 10_000
"""See `_too_short_to_judge`."""


def _warm_up(engine: Engine) -> None:
    engine.warm_up()


def train(
    request: TrainRequest,
    *,
    observer: Observer | None = None,
    progress: LoadProgress | None = None,
    warmup: WarmUp = _warm_up,
    watch: Stopwatch | None = None,
    ranks: Ranks = SOLO,
) -> RunResult:
    """Carry out a training request; raises `RaymineError` if that is not possible.

    Inputs are checked before anything is created, so a refused request leaves no files. progress: called while images
    and kernels are loaded. observer: called during training. SIGINT and SIGTERM stop the run after a checkpoint: the
    result then has the status "stopped" and an `exit_code` of 128 + the signal. watch: counts the wall clock; one that
    starts now if None. ranks: the processes that train it together, of which this is rank 0 (`several`); the others
    call `follow.follow`.
    """
    observer, watch = observer or SilentObserver(), watch or Stopwatch()
    if request.resume and request.out is None:
        raise ConfigError(
            f"{option('resume')} needs {option('out')}, the folder of the run to continue.",
            hint="`raymine runs` lists them.",
        )
    with contextlib.ExitStack() as stack:
        opened, _ = together(ranks, lambda: _open(request, stack), shared=_shown)
        if opened is not None:
            run, stored = opened
            with watch.stage("scene"):
                prepared, _ = together(ranks, lambda: _prepare_again(request, run, stored, ranks), facts_of)
            recorded = None if ranks.active else run.read_manifest().environment.threads
        else:
            with watch.stage("scene"):
                prepared, _ = together(ranks, lambda: prepare(request, ranks=ranks), facts_of)
            recorded = None
        told = stack.enter_context(run_threads(request, prepared, recorded))
        begun = opened is not None and bool(checkpoint.list_steps(opened[0].checkpoints))

        def ready() -> _Work:
            work = make_ready(prepared, progress, watch, stack, begun=begun, ranks=ranks)
            if opened is not None:
                _require_same_images(opened[0], work)
            return work

        work, _ = together(ranks, ready, shown_work)
        with watch.stage("kernels"):
            together(ranks, lambda: warm(work, warmup))
        with Leader(ranks, work.state, work.engine) as leader:
            run = opened[0] if opened is not None else stack.enter_context(_create(request, work))
            ranks.notes.write(Notes.RUN, str(run.path))
            result = _train_in(run, work, request, observer, told, watch, leader)
            leader.exit_code = result.exit_code
        return result


def _open(request: TrainRequest, stack: contextlib.ExitStack) -> tuple[RunDir, RunConfig] | None:
    """The run to resume, locked, and its config; None for a new run. The limit of device memory holds from here on."""
    limit_memory(request, stack)
    if request.out is None or not check_target(request.out, resume=request.resume):
        return None
    run = stack.enter_context(RunDir.open_locked(request.out))
    # Import the recipe before the stored config is read, which may use classes of the recipe's package.
    if request.recipe != recipes.AUTO:
        recipes.find(request.recipe)
    with allowing(request.packages):
        return run, run.read_config()


def limit_memory(request: TrainRequest, stack: contextlib.ExitStack) -> None:
    """Hold the device memory of the request until the stack ends, if it names a limit."""
    if request.gpu_memory is not None:
        stack.enter_context(memory_limit(resolve_device(request.device), request.gpu_memory))


def _shown(opened: tuple[RunDir, RunConfig] | None) -> JSON:
    """The config of the run that is resumed, for the other ranks, which may not see its folder."""
    return None if opened is None else opened[1].to_json()


def _prepare_again(request: TrainRequest, run: RunDir, stored: RunConfig, ranks: Ranks) -> Prepared:
    prepared = prepare(request, stored, ranks=ranks)
    _require_same_run(run, prepared, stored)
    return prepared


@contextlib.contextmanager
def run_threads(request: TrainRequest, prepared: Prepared, recorded: int | None) -> Iterator[tuple[str, ...]]:
    """Use the threads of a CPU run within the block. Yields warnings about their number.

    recorded: the number with which a resumed run began. It stays, because matrix products may depend on it.
    """
    if prepared.device.type != "cpu":
        yield ()
        return
    here = torch.get_num_threads()
    count = request.threads or recorded or here
    told: tuple[str, ...] = ()
    if recorded is not None and count != recorded:
        told = (
            f"This run began with {_threads_in_words(recorded)} and continues with {count}: its result may differ in "
            f"the last bits from that of an uninterrupted run.",
        )
    elif request.threads is None and count != here:
        told = (
            f"This run began with {_threads_in_words(count)} and continues with as many, to give the bits of an "
            f"uninterrupted run. To use the {here} of this machine: {option('threads', here)}.",
        )
    with using_threads(count):
        yield told


def _threads_in_words(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


@dataclass(frozen=True)
class _Work:
    """A run that is ready to start: its images are loaded and its memory is allocated.

    taken: what it took from another run; None if it did not start from one, or has gone on since.
    """

    prepared: Prepared
    data: TrainData
    bank: ImageBank
    state: TrainState
    engine: Engine
    evaluate: Callable[[], QuickScore] | None
    guard: ImageGuard | None
    taken: Taken | None = None


def make_ready(
    prepared: Prepared,
    progress: LoadProgress | None,
    watch: Stopwatch,
    stack: contextlib.ExitStack,
    *,
    begun: bool = False,
    ranks: Ranks = SOLO,
) -> _Work:
    """Load images and kernels, at the same time, and build the model. begun: the run has a checkpoint to go on from.

    ranks: the processes that train it together. Only rank 0 evaluates.
    """
    config, scene, device = prepared.config, prepared.scene, prepared.device
    require_memory(config.train, scene.bounds, device)
    with memory_errors(device):
        with watch.stage("images"):
            trained, held_out = split_training(scene, config.hold_out, config.leave_out)
            rig = CameraRig(scene, trained, device)
            masked = any(scene.frames[i].mask is not None for i in trained)
            wait_for_kernels = _nothing
            if not ranks.active:
                wait_for_kernels = compile_ahead(config.train, rig, scene.bounds, masked, device)
            depths = "depth" in targets_of(config.train.loss)
            opened = open_data(scene, trained, device, progress, "images to train on", rig, depths)
            loaded = stack.enter_context(opened)
            frames = _frames_to_look_at(scene, held_out, config.schedule.evaluate_views)
            views = None
            if frames and ranks.leads:
                views = stack.enter_context(open_data(scene, frames, device, progress, "images to evaluate")).train
        with watch.stage("pixel maps"):
            pixels = PixelSampler(config.train.pixels, loaded.bank)
        if progress is not None:
            progress(KERNELS, 0, 1)
        with watch.stage("kernels"):
            wait_for_kernels()
        with watch.stage("model"):
            state = create_state(
                config.train, loaded.train, seed=config.seed, device=device, pixels=pixels, ranks=ranks
            )
            taken = None if begun or prepared.start is None else take(state, prepared.start)
            engine = engine_for(state, loaded.train)
    evaluate = None if views is None else _evaluator(scene, views, "held-out" if held_out else "test", engine)
    guard = None
    if ranks.leads and not _too_short_to_judge(config):
        names = training_names(scene)
        errors = ImageErrors(loaded.train, scene.background or (0.0, 0.0, 0.0))
        guard = ImageGuard(errors, [names[frame] for frame in trained], engine.renderer)
    return _Work(prepared, loaded.train, loaded.bank, state, engine, evaluate, guard, taken)


def shown_work(work: _Work) -> dict[str, JSON]:
    """What all ranks must agree about before they take a step: the images, and how steps are taken."""
    return {"images": work.bank.digest, "engine": work.engine.name}


def warm(work: _Work, warmup: WarmUp = _warm_up) -> None:
    """Compile and load what a step needs. Ranks must have met: warming up may send messages to others."""
    with memory_errors(work.prepared.device):
        warmup(work.engine)


def _fresh(work: _Work) -> TrainState:
    """A state as at step 0."""
    prepared, config = work.prepared, work.prepared.config
    state = create_state(config.train, work.data, seed=config.seed, device=prepared.device)
    if prepared.start is not None:
        take(state, prepared.start)
    return state


def _too_short_to_judge(config: RunConfig) -> bool:
    """Whether a run on CUDA is so short that looking at its training images is not worth the wait.

    Their pixels are read by Numba, which such a run does not need otherwise, and which takes 1.4 s to import.
    """
    short = (config.steps or 0) < _SHORT_STEPS if config.max_seconds is None else config.max_seconds < _SHORT_SECONDS
    return config.device == "cuda" and short


def _frames_to_look_at(scene: Scene, held_out: tuple[int, ...], evaluate_views: int) -> tuple[int, ...]:
    """Frames of the quick evaluation: all held-out views, else `evaluate_views` test views; none if that is 0."""
    return held_out if held_out and evaluate_views else evaluation_frames(scene, evaluate_views)


def _evaluator(scene: Scene, views: TrainData, split: EvalSplit, engine: Engine) -> Callable[[], QuickScore]:
    """The function that runs the quick evaluation on these views of `split`."""

    quick = QuickEvaluation(views, scene.background or (0.0, 0.0, 0.0))

    def evaluate() -> QuickScore:
        return QuickScore(quick.psnr(engine.renderer()), len(views.rig), split)

    return evaluate


def _create(request: TrainRequest, work: _Work) -> RunDir:
    prepared, config = work.prepared, work.prepared.config
    manifest = Manifest(
        name="",
        scene=config.scene,
        scene_digest=prepared.digest,
        image_digest=work.bank.digest,
        recipe=config.recipe,
        seed=config.seed,
        status="running",
        started=utc_now(),
        environment=describe_environment(prepared.device),
        train_images=len(split_training(prepared.scene, config.hold_out, config.leave_out)[0]),
    )
    stem = f"{slug(Path(config.scene).name)}-{slug(config.recipe.removeprefix('__main__:'))}"
    run = RunDir.create(request.out, root=request.runs_root, stem=stem, config=config.to_json(), manifest=manifest)
    run.write_images(work.bank.digests)
    return run


def _require_same_run(run: RunDir, prepared: Prepared, stored: RunConfig) -> None:
    manifest = run.read_manifest()
    asked = prepared.config
    # Another downscale changes the digest too, but the difference of the configs below explains it better.
    if manifest.scene_digest != prepared.digest and stored.downscale == asked.downscale:
        raise RunError(
            f"{run.path} is a run of another scene: it was trained on {manifest.scene}, and {asked.scene} "
            "has other frames, poses or cameras.",
            hint=f"Give the scene the run was made from, or another {option('out')}.",
        )
    changed = differences(identity(stored.to_json()), identity(asked.to_json()))
    if changed:
        raise ConfigError(
            f"{run.path} was started with other settings: {'; '.join(changed)}.",
            hint=f"Resume with the same settings (only {option('steps')} and {option('max_seconds')} may change), "
            f"or give another {option('out')}.",
        )


def _require_same_images(run: RunDir, work: _Work) -> None:
    if run.read_manifest().image_digest != work.bank.digest:
        raise RunError(
            f"The images of the scene have changed since {run.path} was started.",
            hint=f"Put the old images back, or train anew with another {option('out')}.",
        )


@dataclass(frozen=True)
class _Restored:
    """The state of the loop from which a run continues, and events to report about its checkpoints."""

    loop: LoopState
    events: tuple[Event, ...]


def _restore(run: RunDir, state: TrainState, recipe: str) -> _Restored:
    """Restore `state` and the checkpoint folder to the latest intact checkpoint; without one, start at step 0."""
    latest = checkpoint.load_latest(run.checkpoints)
    if latest is None:
        return _Restored(LoopState(), ())
    found = latest.checkpoint
    checkpoint.require(found, {"recipe": recipe, "config": run.read_digests()})
    restore_state(state, found)
    loop = restore_loop(found)
    checkpoint.rewind(run.checkpoints, found.step, loop.best_marker())
    events = [Event("damaged-checkpoint", problem, found.step, "warning") for problem in latest.problems]
    if latest.problems:
        events.append(Event("fallback", f"using the checkpoint of step {found.step} instead", found.step, "warning"))
    return _Restored(loop, (*events, Event("resume", f"resumed from step {found.step}", found.step)))


def _train_in(
    run: RunDir,
    work: _Work,
    request: TrainRequest,
    observer: Observer,
    warnings: tuple[str, ...],
    watch: Stopwatch,
    leader: Leader,
) -> RunResult:
    """Train in a locked folder. Its manifest is correct afterwards, however this ends."""
    config, state, device = work.prepared.config, work.state, work.prepared.device
    meta = {"recipe": config.recipe, "config": model_digest(config.to_json())}
    manifest_writer = ManifestWriter(run, request.command, watch)
    journal: Journal | None = None
    beside: Companions | None = None
    try:
        restored = _restore(run, state, config.recipe)
        journal = Journal(run, state.step)
        run.write_config(config.to_json())
        manifest_writer.begin(state.step, restored.loop, describe_environment(device), state.ranks.world)
        beside = Companions(
            run,
            config,
            request,
            state.step,
            leader.advance,
            lambda: work.bank.waited + work.engine.waited,
            device,
            Observers([journal, observer]),
        )
        observer = Observers([observer, beside.observer])
        setup = LoopSetup(
            run=run,
            state=state,
            advance=beside.advance,
            renderer=work.engine.renderer,
            hard_view=partial(hard_view, state, work.data),
            fresh=lambda: _fresh(work),
            schedule=config.schedule,
            limits=Limits(config.steps, config.max_seconds, request.replay, config.train.max_useful_steps),
            meta=meta,
            journal=journal,
            observer=observer,
            evaluate=work.evaluate,
            guard=work.guard,
            synchronise=torch.cuda.synchronize if device.type == "cuda" else _nothing,
            on_checkpoint=manifest_writer.update,
            device=device,
            watch=watch,
            poses=_pose_watch(work),
        )
        observers = Observers([journal, observer])
        unlisted = register(run.path)
        observers.on_start(_start_info(run, work, state.step, restored.loop, warnings))
        for event in (*_start_events(work), *restored.events, *_repair_events(journal, state.step)):
            observers.on_event(event)
        if unlisted:
            observers.on_event(Event("index", f"{unlisted}; the run itself is not affected", state.step, "warning"))
        with memory_errors(device):
            result = Loop(setup, restored.loop).run()
        manifest_writer.end(result.status, result.step, restored.loop, result.hard_images)
        return result
    except BaseException as error:
        manifest_writer.fail(error)
        raise
    finally:
        if beside is not None:
            beside.close(state.step)
        if journal is not None:
            journal.close()
        register(run.path)


def _pose_watch(work: _Work) -> PoseWatch | None:
    frames = work.prepared.scene.frames
    names = [frames[i].image.stem for i in work.data.rig.frames]
    return None if work.state.poses is None else PoseWatch(work.state, names)


def _start_events(work: _Work) -> tuple[Event, ...]:
    """What was taken from the run that this one starts from, and what was not."""
    start, taken = work.prepared.start, work.taken
    if start is None or taken is None:
        return ()
    level = "warning" if taken.left else "info"
    data: dict[str, JSON] = {"taken": list(taken.taken), "left": list(taken.left), "step": start.init.step}
    return (Event("init", taken.sentence(start.init), 0, level, data),)


def _repair_events(journal: Journal, step: int) -> tuple[Event, ...]:
    done = journal.repaired
    if not (done.later or done.unreadable):
        return ()
    message = f"removed {done.later} metric rows after step {step} and {done.unreadable} unreadable lines"
    return (Event("metrics-repair", message, step, data={"later": done.later, "unreadable": done.unreadable}),)


def _nothing() -> None:
    return None


def _start_info(run: RunDir, work: _Work, step: int, loop: LoopState, warnings: tuple[str, ...]) -> StartInfo:
    prepared = work.prepared
    config, scene, engine = prepared.config, prepared.scene, work.engine
    notes, warnings = scene.decisions, (*scene.warnings, *warnings)
    # Someone who trains on CUDA should know when it is not the fast path that runs, and why.
    ranks = work.state.ranks
    if ranks.active:
        sharing = f"{ranks.world}, which share the rays of each step" if ranks.world > 1 else "1"
        notes = (*notes, f"Processes: {sharing} ({ranks.backend}).")
    if prepared.device.type == "cuda" and engine.name != "fused":
        notes = (*notes, f"Engine: {engine.name}, because {engine.reason}.")
        if config.train.deterministic:
            told = f"The {engine.name} engine adds up gradients in no fixed order on CUDA: this run will not repeat."
            warnings = (*warnings, told)
    return StartInfo(
        run=run.path,
        scene=config.scene,
        recipe=config.recipe,
        device=describe_environment(prepared.device).device,
        step=step,
        elapsed=loop.elapsed,
        steps=config.steps,
        max_seconds=config.max_seconds,
        max_useful_steps=0 if config.max_seconds is None else config.train.max_useful_steps,
        notes=notes,
        details=prepared.details,
        warnings=warnings,
        source=scene,
        trained=work.data.rig.frames,
    )
