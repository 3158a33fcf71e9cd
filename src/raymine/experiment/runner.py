"""`train`: check the request, load the data, create or reopen the run folder, and start the loop."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from raymine import checkpoint, recipes
from raymine.config import RunConfig, allowing, differences, identity, model_digest
from raymine.engines import draws_on_device
from raymine.errors import ConfigError, RunError, option
from raymine.files import JSON
from raymine.quantities import listing
from raymine.rundir import Manifest, RunDir, check_target, describe_environment, register
from raymine.rundir.folder import slug
from raymine.rundir.manifest import utc_now
from raymine.step import TrainState
from raymine.step.distributed.meeting import Notes
from raymine.step.distributed.ranks import SOLO, Ranks
from raymine.step.hardness import hard_view

from .bank_budget import bank_sentence, falls_short
from .drive import Limits
from .inputs import changed_names, recorded_depths
from .loop import Loop, LoopSetup
from .memory import memory_errors
from .observers import Event, Observer, Observers, SilentObserver, StartInfo
from .prepare import LoadProgress, Prepared, prepare, split_training
from .request import RunResult, TrainRequest
from .saved.loopstate import LoopState
from .saved.restore import restore_loop, restore_state
from .several import Leader, facts_of, together
from .stopwatch import Stopwatch
from .watchers.companions import Companions
from .watchers.journal import Journal
from .watchers.manifest_writer import ManifestWriter
from .work import Work, do_nothing, fresh, limit_memory, make_ready, pose_watch, run_threads, shown_work, warm


def train(
    request: TrainRequest,
    *,
    observer: Observer | None = None,
    progress: LoadProgress | None = None,
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
        opened, _ = together(ranks, lambda: _open(request, stack, ranks), shared=_shown)
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

        def ready() -> Work:
            work = make_ready(prepared, progress, watch, stack, begun=begun, ranks=ranks)
            if opened is not None:
                _require_same_images(opened[0], work)
            return work

        work, _ = together(ranks, ready, shown_work)
        with watch.stage("kernels"):
            together(ranks, lambda: warm(work))
        with Leader(ranks, work.state, work.engine) as leader:
            run = opened[0] if opened is not None else stack.enter_context(_create(request, work))
            ranks.notes.write(Notes.RUN, str(run.path))
            result = _train_in(run, work, request, observer, told, watch, leader)
            leader.exit_code = result.exit_code
        return result


def _open(request: TrainRequest, stack: contextlib.ExitStack, ranks: Ranks) -> tuple[RunDir, RunConfig] | None:
    """The run to resume, locked, and its config; None for a new run. The limit of device memory holds from here on."""
    limit_memory(request, stack, ranks)
    if request.out is None or not check_target(request.out, resume=request.resume):
        return None
    run = stack.enter_context(RunDir.open_locked(request.out))
    # Import the recipe before the stored config is read, which may use classes of the recipe's package.
    if request.recipe != recipes.AUTO:
        recipes.find(request.recipe)
    with allowing(request.packages):
        return run, run.read_config()


def _shown(opened: tuple[RunDir, RunConfig] | None) -> JSON:
    """The config of the run that is resumed, for the other ranks, which may not see its folder."""
    return None if opened is None else opened[1].to_json()


def _prepare_again(request: TrainRequest, run: RunDir, stored: RunConfig, ranks: Ranks) -> Prepared:
    prepared = prepare(request, stored, ranks=ranks)
    _require_same_run(run, prepared, stored)
    return prepared


def _create(request: TrainRequest, work: Work) -> RunDir:
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
    run.write_images({**work.bank.digests, **work.depths})
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


def _require_same_images(run: RunDir, work: Work) -> None:
    if run.read_manifest().image_digest != work.bank.digest:
        raise RunError(
            f"The images of the scene have changed since {run.path} was started.",
            hint=f"Put the old images back, or train anew with another {option('out')}.",
        )
    # A run of an earlier version does not know its depth maps.
    before = recorded_depths(run.path)
    changed = changed_names(before, work.depths) if before else ()
    if changed:
        raise RunError(
            f"Depth maps of the scene have changed since {run.path} was started: {listing(changed)}.",
            hint=f"Put the old ones back, or train anew with another {option('out')}.",
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
    work: Work,
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
            falls_short(work.bank, config.train, device),
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
            fresh=lambda: fresh(work),
            schedule=config.schedule,
            limits=Limits(config.steps, config.max_seconds, request.replay, config.train.max_useful_steps),
            meta=meta,
            journal=journal,
            observer=observer,
            evaluate=work.evaluate,
            guard=work.guard,
            synchronise=torch.cuda.synchronize if device.type == "cuda" else do_nothing,
            on_checkpoint=manifest_writer.update,
            device=device,
            watch=watch,
            poses=pose_watch(work),
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


def _start_events(work: Work) -> tuple[Event, ...]:
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


def _start_info(run: RunDir, work: Work, step: int, loop: LoopState, warnings: tuple[str, ...]) -> StartInfo:
    prepared = work.prepared
    config, scene, engine = prepared.config, prepared.scene, work.engine
    notes, warnings = scene.decisions, (*scene.warnings, *warnings)
    # Someone who trains on CUDA should know when it is not the fast path that runs, and why.
    ranks = work.state.ranks
    if ranks.active:
        sharing = f"{ranks.world}, which share the rays of each step" if ranks.world > 1 else "1"
        notes = (*notes, f"Processes: {sharing} ({ranks.backend}).")
    details = prepared.details
    if falls_short(work.bank, config.train, prepared.device):
        notes = (*notes, bank_sentence(work.bank, prepared.bank_budget))
    elif not draws_on_device(config.train, prepared.device.type):
        details = (*details, bank_sentence(work.bank, prepared.bank_budget))
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
        details=details,
        warnings=warnings,
        source=scene,
        trained=work.data.rig.frames,
    )
