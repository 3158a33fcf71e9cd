"""What a process holds of a run before its first step: images, model and engine. All ranks make the same ready."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from raymine.config import RunConfig
from raymine.contracts import Scene, targets_of
from raymine.engines import Engine, compile_ahead, engine_for
from raymine.errors import option
from raymine.evaluate.hard_images import ImageErrors
from raymine.evaluate.quick import EvalSplit, QuickEvaluation, QuickScore, quick_protocol
from raymine.files import JSON
from raymine.kernels.threads import using_threads
from raymine.pixels import PixelSampler
from raymine.rays import CameraRig
from raymine.scenes.bank import ImageBank
from raymine.scenes.depth import depth_digest
from raymine.scenes.names import training_names
from raymine.step import TrainData, TrainState, create_state
from raymine.step.distributed.ranks import SOLO, Ranks

from .memory import memory_errors, memory_limit, require_memory
from .prepare import KERNELS, LoadProgress, Prepared, evaluation_frames, open_data, resolve_device, split_training
from .request import TrainRequest
from .saved.start_from import Taken, take
from .stopwatch import Stopwatch
from .watchers.guard import ImageGuard
from .watchers.pose_watch import PoseWatch

_SHORT_SECONDS, _SHORT_STEPS = 10.0, 10_000
"""See `_too_short_to_judge`."""


def do_nothing() -> None:
    return None


def limit_memory(request: TrainRequest, stack: contextlib.ExitStack, ranks: Ranks) -> None:
    """Hold the limit of device memory of the request until the stack ends, if it names one."""
    if request.gpu_memory is not None:
        device = resolve_device(request.device)
        stack.enter_context(memory_limit(device, request.gpu_memory, ranks.sharing(device)))


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
class Work:
    """A run that is ready to start: its images are loaded and its memory is allocated.

    taken: what it took from another run; None if it did not start from one, or has gone on since. depths: digests of
    the depth maps that it trains with (`scenes.depth.depth_digests`).
    """

    prepared: Prepared
    data: TrainData
    bank: ImageBank
    state: TrainState
    engine: Engine
    evaluate: Callable[[], QuickScore] | None
    guard: ImageGuard | None
    taken: Taken | None = None
    depths: dict[str, str] = field(default_factory=dict)


def make_ready(
    prepared: Prepared,
    progress: LoadProgress | None,
    watch: Stopwatch,
    stack: contextlib.ExitStack,
    *,
    begun: bool = False,
    ranks: Ranks = SOLO,
) -> Work:
    """Load images and kernels, at the same time, and build the model. begun: the run has a checkpoint to go on from.

    ranks: the processes that train it together. Only rank 0 evaluates.
    """
    config, scene, device = prepared.config, prepared.scene, prepared.device
    require_memory(config.train, scene.bounds, device, ranks.sharing(device))
    with memory_errors(device):
        with watch.stage("images"):
            trained, held_out = split_training(scene, config.hold_out, config.leave_out)
            rig = CameraRig(scene, trained, device)
            masked = any(scene.frames[i].mask is not None for i in trained)
            wait_for_kernels: Callable[[], object] = do_nothing
            if not ranks.active:
                wait_for_kernels = compile_ahead(config.train, rig, scene.bounds, masked, device)
            depths = "depth" in targets_of(config.train.loss)
            budget = prepared.bank_budget
            opened = open_data(scene, trained, device, progress, "images to train on", rig, depths, budget)
            loaded = stack.enter_context(opened)
            frames = _frames_to_look_at(scene, held_out, config.schedule.evaluate_views)
            views = None
            if frames and ranks.leads:
                opened = open_data(scene, frames, device, progress, "images to evaluate", budget=budget)
                views = stack.enter_context(opened).train
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
            taken = None
            # Other ranks get the state of rank 0 before their first step.
            if prepared.start is not None and ranks.leads and not begun:
                taken = take(state, prepared.start, tuple(loaded.bank.digests))
            engine = engine_for(state, loaded.train)
    evaluate = None if views is None else _evaluator(scene, views, "held-out" if held_out else "test", engine)
    guard = None
    if ranks.leads and not _too_short_to_judge(config):
        names = training_names(scene)
        errors = ImageErrors(loaded.train, scene.background or (0.0, 0.0, 0.0), state)
        guard = ImageGuard(errors, [names[frame] for frame in trained], engine.renderer)
    return Work(prepared, loaded.train, loaded.bank, state, engine, evaluate, guard, taken, loaded.depths)


def shown_work(work: Work) -> dict[str, JSON]:
    """What all ranks must agree about before they take a step: images, depth maps, and how steps are taken."""
    return {"images": work.bank.digest, "depth maps": depth_digest(work.depths), "engine": work.engine.name}


def warm(work: Work) -> None:
    """Compile and load what a step needs. Ranks must have met: warming up may send messages to others."""
    with memory_errors(work.prepared.device):
        work.engine.warm_up()


def fresh(work: Work) -> TrainState:
    """A state as at step 0."""
    prepared, config = work.prepared, work.prepared.config
    state = create_state(config.train, work.data, seed=config.seed, device=prepared.device)
    if prepared.start is not None:
        take(state, prepared.start, tuple(work.bank.digests))
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
    protocol = quick_protocol(scene, views.rig.frames, split)

    def evaluate() -> QuickScore:
        return QuickScore(quick.psnr(engine.renderer()), len(views.rig), split, protocol)

    return evaluate


def pose_watch(work: Work) -> PoseWatch | None:
    frames = work.prepared.scene.frames
    names = [frames[i].image.stem for i in work.data.rig.frames]
    return None if work.state.poses is None else PoseWatch(work.state, names)
