"""The step benchmark: time per step, and PSNR over training time, as one JSON row per policy.

Training is that of `raymine train --max-seconds`. The clock does not count evaluations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raymine.config import replace_fields
from raymine.engines import Engine, engine_for
from raymine.errors import SceneError
from raymine.evaluate import psnr
from raymine.evaluate.views import true_image
from raymine.experiment import TrainRequest, evaluation_frames, open_data
from raymine.experiment.memory import memory_errors, require_memory
from raymine.experiment.prepare import KERNELS, prepare
from raymine.fields import HashFieldConfig
from raymine.recipes import AUTO
from raymine.rundir import Environment, describe_environment
from raymine.step import TrainConfig, TrainData, TrainState, create_state, train_step

from .derive import Curve, reached
from .measure import Hooks, final_rays, step_time, train_for
from .memory import peak_bytes
from .policies import check_request, parse_policies
from .records import StepTime
from .rows import StageProgress, append_rows, require_rows_file

if TYPE_CHECKING:
    from raymine.engines.fused.engine import FusedEngine

TARGETS = (30.0, 33.0, 35.0, 36.0)
"""PSNR values (dB) for which the training time is reported."""
LOOKS = (0.02, 0.03, 0.04, 0.055, 0.07, 0.09, 0.11, 0.135, 0.16, 0.2, 0.25, 0.35, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Shares of the time at which PSNR is measured: dense where it rises, because times in between are interpolated
linearly and the true curve lies above the line."""


@dataclass(frozen=True)
class StepRequest:
    """A step benchmark as the user asks for it; fields as in `MiningRequest`. out: a file to append rows to."""

    scene: str | Path
    policies: str = "hard"
    seconds: float = 20.0
    recipe: str = AUTO
    device: str = "auto"
    downscale: int = 1
    views: int = 25
    out: Path | None = None

    def __post_init__(self) -> None:
        check_request(self.policies, self.seconds, self.views)
        require_rows_file(self.out)


@dataclass(frozen=True)
class StepRow:
    """One result row of the step benchmark.

    recipe: as a run would record it. psnr: (training seconds, dB over all pixels of the held-out views). reached:
    seconds to each of `TARGETS`, by dB. stages: milliseconds of each stage of a fused step; empty for the plain step.
    busy: share of the wall clock during which the device works; None for the plain step. frames_per_second: views
    rendered per second. memory: peak bytes on the device, including images; None on a CPU. step_memory: bytes of a
    fused step beyond parameters, moments and images. plain_step_memory: the same of a plain step of the same state and
    batch. Both are None without a fused step. ready_seconds: time to compile and load kernels.
    """

    benchmark: str
    scene: str
    recipe: str
    downscale: int
    views: int
    policy: str
    seed: int
    engine: str
    environment: Environment
    shapes: dict[str, int]
    seconds: float
    steps: int
    step_ms: StepTime
    mean_step_ms: float
    rays: float
    marched: float
    trained: float
    psnr: tuple[tuple[float, float], ...]
    reached: dict[str, float | None]
    stages: dict[str, float]
    busy: float | None
    frames_per_second: float
    memory: int | None
    step_memory: int | None
    plain_step_memory: int | None
    ready_seconds: float


def bench_step(request: StepRequest, progress: StageProgress = lambda *_: None) -> list[StepRow]:
    """Measure all policies, one after another; each row is written when it is complete."""
    names = {policy.name: policy.overrides for policy in parse_policies(request.policies)}
    prepared = prepare(
        TrainRequest(
            request.scene,
            request.recipe,
            max_seconds=request.seconds,
            device=request.device,
            downscale=request.downscale,
        )
    )
    scene, device = prepared.scene, prepared.device
    frames = evaluation_frames(scene, request.views)
    if not frames:
        raise SceneError(f"The scene {request.scene} has no held-out views (test or val), so there is no PSNR.")
    rows = []

    def loading(what: str, done: int, total: int) -> None:
        progress(what, done, total)

    with (
        memory_errors(device),
        open_data(scene, scene.of_split("train"), device, loading) as train,
        open_data(scene, frames, device, loading) as test,
    ):
        for name, overrides in names.items():
            config = replace_fields(prepared.config.train, overrides)
            require_memory(config, scene.bounds, device)
            bench = _StepBench(request, config, device, train.train, test.train, scene.background or (0.0, 0.0, 0.0))
            row = replace(bench.run(name, progress), scene=prepared.config.scene, recipe=prepared.config.recipe)
            rows.append(row)
            append_rows(request.out, [row])
    return rows


@dataclass(frozen=True)
class _StepBench:
    """One policy on one scene."""

    request: StepRequest
    config: TrainConfig
    device: torch.device
    data: TrainData
    views: TrainData
    background: tuple[float, float, float]

    def run(self, policy: str, progress: StageProgress) -> StepRow:
        request, cuda = self.request, self.device.type == "cuda"
        progress(KERNELS, 0, 1)
        started = time.perf_counter()
        state = create_state(self.config, self.data, seed=0, device=self.device)
        engine = engine_for(state, self.data)
        engine.warm_up()
        ready = time.perf_counter() - started
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)

        def look(_: TrainState, seconds: float) -> tuple[float, float]:
            return seconds, self._psnr(engine)[0]

        hooks = Hooks(
            engine.advance, look, lambda s: progress(f"{policy}, training", s, request.seconds), self.synchronise
        )
        log = train_for(state, request.seconds, hooks, LOOKS)
        memory = torch.cuda.max_memory_allocated(self.device) if cuda else None
        fused, plain = self._step_memory(state) if cuda else (None, None)
        curve = Curve(*(np.array(part) for part in zip(*log.looks, strict=True)))
        last = log.reports[-max(1, len(log.reports) // 10) :]
        _, frames_per_second = self._psnr(engine)
        # Last, because this destroys the state.
        busy, stages = _stages(engine)
        return StepRow(
            benchmark="step",
            scene="",
            recipe="",
            downscale=request.downscale,
            views=len(self.views.rig),
            policy=policy,
            seed=0,
            engine=engine.name,
            environment=describe_environment(self.device),
            shapes=_shapes(state, self.data),
            seconds=log.elapsed,
            steps=len(log.reports),
            step_ms=step_time(log),
            mean_step_ms=1e3 * log.elapsed / len(log.reports),
            rays=final_rays(log),
            marched=sum(r.marched for r in last) / len(last),
            trained=sum(r.trained for r in last) / len(last),
            psnr=tuple(log.looks),
            reached={f"{target:g}": reached(curve, target) for target in TARGETS},
            busy=busy,
            stages=stages,
            frames_per_second=frames_per_second,
            memory=memory,
            step_memory=fused,
            plain_step_memory=plain,
            ready_seconds=ready,
        )

    def _step_memory(self, state: TrainState) -> tuple[int | None, int | None]:
        """Bytes of a fused and of a plain step of this state, which does not change."""
        twin = create_state(self.config, self.data, seed=state.seed, device=self.device)
        twin.restore(state.tensors(), state.scalars())

        def advance() -> Engine:
            engine = engine_for(twin, self.data)
            for _ in range(3):  # the second step is captured, the third replayed
                engine.advance(1)
            return engine

        fused, engine = peak_bytes(advance, self.device)
        held = _fused(engine)
        if held is None:
            return None, None
        for _ in range(2):  # allocations that are made once and kept do not count
            plain, _ = peak_bytes(lambda: train_step(twin, self.data), self.device)
        return fused - held.image_bytes, plain

    def _psnr(self, engine: Engine) -> tuple[float, float]:
        """Mean over the views of their PSNR (dB, all pixels), and views rendered per second."""
        renderer, backdrop = engine.renderer(), torch.tensor(self.background)
        scores, seconds = [], 0.0
        for index, (truth, mask) in enumerate(self.truths):
            rays = self.views.rig.rays_for_image(index)
            self.synchronise()
            started = time.perf_counter()
            colour = renderer.render(rays, backdrop.to(self.device)).colour
            self.synchronise()
            seconds += time.perf_counter() - started
            predicted = colour.nan_to_num(nan=0.0).clamp(0, 1).reshape(truth.shape)
            scores.append(psnr(predicted, truth, mask))
        return sum(scores) / len(scores), len(scores) / seconds

    @cached_property
    def truths(self) -> list[tuple[Tensor, Tensor | None]]:
        """The held-out views and their masks, on the device."""
        found = [true_image(self.views.images, i, torch.tensor(self.background)) for i in range(len(self.views.rig))]
        return [(t.to(self.device), None if mask is None else mask.to(self.device)) for t, mask in found]

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _fused(engine: Engine) -> FusedEngine | None:
    """`engine` if it is the fused one, else None. Only then is its module imported, which needs Triton."""
    if engine.name != "fused":
        return None
    from raymine.engines.fused.engine import FusedEngine

    assert isinstance(engine, FusedEngine)
    return engine


def _stages(engine: Engine) -> tuple[float | None, dict[str, float]]:
    """Share of the wall clock during which the device works, and milliseconds per stage; (None, {}) if not fused.

    This destroys the state.
    """
    fused = _fused(engine)
    if fused is None:
        return None, {}
    from raymine.engines.fused.timing import busy_share, stage_times

    return busy_share(fused.trainer), stage_times(fused.trainer)


def _shapes(state: TrainState, data: TrainData) -> dict[str, int]:
    height, width = (int(v) for v in data.images.sizes[0])
    return {
        "train_images": len(data.rig),
        "width": width,
        "height": height,
        "parameters": sum(p.numel() for p in state.module.parameters()),
        "samples": state.config.batch.samples,
        **_field_shapes(state),
    }


def _field_shapes(state: TrainState) -> dict[str, int]:
    """Sizes of a hash-grid field, by the same names as in earlier rows."""
    field = state.config.field
    if not isinstance(field, HashFieldConfig):
        return {}
    grid = field.grid
    return {
        "levels": grid.levels,
        "features": grid.features,
        "log2_entries": grid.log2_entries,
        "network": field.width,
    }
