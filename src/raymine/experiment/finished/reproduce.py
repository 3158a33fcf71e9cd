"""Rerun a run from its manifest and config, and compare the two: tensors, metrics, and what they came from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from raymine import checkpoint
from raymine.config import RunConfig, allowing
from raymine.errors import RunError, SceneError
from raymine.files import UnreadableFile
from raymine.metrics_log import Row, read_rows
from raymine.quantities import listing
from raymine.rundir import RunDir
from raymine.rundir.compare import Difference, origins
from raymine.scenes import load_scene, scene_digest
from raymine.scenes.bank.sources import sources_of
from raymine.scenes.depth import depth_digests

from ..horizon import Replay
from ..inputs import changed_names, recorded_depths, recorded_inputs
from ..prepare import split_training
from ..request import TrainRequest

TOLERANCE = 0.2
"""PSNR in dB by which two runs of the same config may differ where sums have no fixed order."""

Verdict = Literal["equal", "within noise", "different"]
_SCORES = ("train_psnr", "test_psnr", "held_out_psnr")


@dataclass(frozen=True)
class TensorDifference:
    """A tensor of the final checkpoint that differs. largest: the largest difference; None if the shapes differ."""

    name: str
    largest: float | None


@dataclass(frozen=True)
class Reproduction:
    """A run and its rerun.

    exact: whether equal bits were to be expected, as of runs of one process on a CPU. origins: what differs in seed,
    code, packages, machine, scene and images. first_step: the first step whose recorded metrics differ; None if none
    does.
    """

    run: Path
    rerun: Path
    step: int
    rerun_step: int
    exact: bool
    tensors: tuple[TensorDifference, ...]
    tensor_count: int
    first_step: int | None
    scores: tuple[Difference, ...]
    origins: tuple[Difference, ...]
    verdict: Verdict

    @property
    def reproduced(self) -> bool:
        """Whether the rerun is as close to the run as it should be."""
        return self.verdict == "equal" or (self.verdict == "within noise" and not self.exact)


def reproduction_request(
    path: Path,
    *,
    out: Path | None = None,
    resume: bool = False,
    device: str | None = None,
    threads: int | None = None,
    allow: Collection[str] = (),
) -> TrainRequest:
    """The request that repeats a run: its stored config, seed and images, up to its last step.

    out: the folder of the rerun; None is the next free one beside the run. device, threads: other ones than recorded.
    """
    run = RunDir.open(path)
    with allowing(allow):
        config = run.read_config()
    manifest = run.read_manifest()
    # A damaged checkpoint is found now, and not after the rerun.
    latest = checkpoint.load_latest(run.checkpoints)
    if latest is None or latest.checkpoint.step == 0:
        raise RunError(f"{path} has no checkpoint: there is nothing to compare a rerun with.")
    step = latest.checkpoint.step
    attempts = manifest.attempts
    recorded = attempts[0].environment.threads if attempts else manifest.environment.threads
    return TrainRequest(
        scene=config.scene,
        recipe=config.train,
        recipe_name=config.recipe,
        out=out,
        resume=resume,
        seed=config.seed,
        device=device or config.device,
        downscale=config.downscale,
        hold_out=config.hold_out,
        leave_out=config.leave_out,
        init_from=config.init_from,
        evaluate_views=config.schedule.evaluate_views,
        # With the recorded horizons a run repeats whatever limited it: steps, seconds or a signal.
        replay=Replay(step, tuple(h for h in manifest.horizons if h[0] <= step), manifest.rollbacks),
        threads=recorded if threads is None else threads,
        runs_root=path.absolute().parent,
        allow=tuple(allow),
    )


def changed_inputs(path: Path, *, allow: Collection[str] = ()) -> tuple[str, ...]:
    """What has changed of the scene and its training images since a run was made, in words; () if nothing has."""
    run = RunDir.open(path)
    with allowing(allow):
        config = run.read_config()
    try:
        scene = load_scene(config.scene, downscale=config.downscale)
    except SceneError as error:
        raise SceneError(f"{path} needs the scene that it was trained on. {error.message}") from error
    told = []
    if scene_digest(scene) != run.read_manifest().scene_digest:
        told.append("the scene has other frames, poses or cameras")
    recorded = recorded_inputs(path)
    if recorded and not told:
        changed = changed_names(recorded, _present_inputs(config, depths=bool(recorded_depths(path))))
        if changed:
            told.append(f"{'the image' if len(changed) == 1 else f'{len(changed)} images'} {listing(changed)}")
    return tuple(told)


def _present_inputs(config: RunConfig, *, depths: bool) -> dict[str, str]:
    """What `recorded_inputs` would be now. depths: with the depth maps, which the run has recorded."""
    scene = load_scene(config.scene, downscale=config.downscale)
    frames, _ = split_training(scene, config.hold_out, config.leave_out)
    found = depth_digests(scene, frames) if depths else {}
    for source in sources_of(scene, frames):
        try:
            image, mask = source.digests()
        except UnreadableFile:
            continue
        found[source.name] = image + (f"+{mask}" if mask else "")
    return found


def compare_results(
    path: Path, rerun: Path, *, tolerance: float = TOLERANCE, allow: Collection[str] = ()
) -> Reproduction:
    """Compare the final checkpoints, metrics and origins of two runs. tolerance: PSNR in dB that counts as noise."""
    first, second = RunDir.open(path), RunDir.open(rerun)
    with allowing(allow):
        configs = first.read_config(), second.read_config()
    a, b = _latest(first), _latest(second)
    tensors = _tensor_differences(a.tensors, b.tensors)
    manifests = first.read_manifest(), second.read_manifest()
    scores = tuple(Difference(name, *(getattr(each, name) for each in manifests)) for name in _SCORES)
    # Several processes make sums in another order.
    together = any(attempt.processes > 1 for manifest in manifests for attempt in manifest.attempts)
    exact = not together and all(config.device == "cpu" or config.train.deterministic for config in configs)
    equal = not tensors and a.step == b.step
    known = [(s.first, s.second) for s in scores if s.first is not None and s.second is not None]
    close = a.step == b.step and bool(known) and all(abs(x - y) <= tolerance for x, y in known)
    return Reproduction(
        run=path,
        rerun=rerun,
        step=a.step,
        rerun_step=b.step,
        exact=exact,
        tensors=tensors,
        tensor_count=len(a.tensors),
        first_step=_first_difference(read_rows(first.metrics), read_rows(second.metrics)),
        scores=scores,
        origins=origins(path, rerun),
        verdict="equal" if equal else "within noise" if close else "different",
    )


def _latest(run: RunDir) -> checkpoint.Checkpoint:
    latest = checkpoint.load_latest(run.checkpoints)
    if latest is None:
        raise RunError(f"The run {run.path} has no checkpoint to compare.")
    return latest.checkpoint


def _tensor_differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> tuple[TensorDifference, ...]:
    found = []
    for name in sorted(a.keys() | b.keys()):
        mine, other = a.get(name), b.get(name)
        if mine is None or other is None or mine.shape != other.shape or mine.dtype != other.dtype:
            found.append(TensorDifference(name, None))
        elif not torch.equal(mine, other):
            found.append(TensorDifference(name, float((mine.double() - other.double()).abs().max())))
    return tuple(found)


def _first_difference(a: list[Row], b: list[Row]) -> int | None:
    """The first step that both logs have and whose loss or PSNR differs."""
    logs = [
        {row["step"]: (row.get("loss"), row.get("psnr")) for row in rows if row.get("kind") == "train"}
        for rows in (a, b)
    ]
    shared = sorted(step for step in logs[0].keys() & logs[1].keys() if logs[0][step] != logs[1][step])
    return shared[0] if shared else None
