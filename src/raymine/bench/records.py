"""What the mining benchmark writes: `mining.json` as frozen records, which read back equal to what was written.

Seconds are training seconds (steps only), PSNR is in dB, memory in bytes. A value that does not exist is None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from raymine.config import from_json, to_json
from raymine.errors import ConfigError, RunError, option
from raymine.files import JSON, write_json
from raymine.mining.diagnose import Diagnosis
from raymine.rundir import Environment

VERSION = 1
"""Raised whenever a reader of older files would misread newer ones."""

NAME = "mining.json"


@dataclass(frozen=True)
class Look:
    """One evaluation moment of a run.

    psnr: mean over held-out views, on a grid of their pixels; None where every pixel is masked. diagnosis: of one
    training batch at that moment, under the policy's own choice of samples.
    """

    seconds: float
    step: int
    psnr: float | None
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Trace:
    """Means over blocks of consecutive steps, at most a few hundred of them; all of one length.

    step, seconds: where a block ends. count: finite steps in it. loss, mse, rays, marched, trained: means per step.
    tau, budget: of the miner; empty for policies without one.
    """

    step: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    count: tuple[int, ...] = ()
    loss: tuple[float, ...] = ()
    mse: tuple[float, ...] = ()
    rays: tuple[float, ...] = ()
    marched: tuple[float, ...] = ()
    trained: tuple[float, ...] = ()
    tau: tuple[float, ...] = ()
    budget: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of one step: median and quartiles over all steps of a run."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class StepMemory:
    """Peak bytes of one step (see `raymine.bench.memory`) with this policy, and with `none` on the very same batch."""

    policy: int
    none: int
    rays: int
    marched: int
    trained: int


@dataclass(frozen=True)
class RayDetail:
    """The samples of one ray, by distance t in world units: rendering weight, gradient norm G, trained on or not."""

    t: tuple[float, ...]
    weight: tuple[float, ...]
    gradient: tuple[float, ...]
    chosen: tuple[bool, ...]


@dataclass(frozen=True)
class BenchRun:
    """One policy trained once. share: trained / marched samples over the last tenth of the steps (b/B).

    cpu_share: processor seconds per second of training, over all threads of this process; on a busy machine it is less
    than what the same run has on an idle one, and times are then worth little.
    psnr and ssim: full evaluation at the end, every pixel of every view. skipped: steps that were not finite.
    horizons: of the learning-rate schedule, as (step, total steps expected). ray: one hard ray of the last batch.
    pictures: PNG files under `pictures/`, by kind (`truth`, `predicted`, `error`, `hard`); of seed 0 only.
    """

    policy: str
    seed: int
    seconds: float
    steps: int
    skipped: int
    step_ms: StepTime
    rays: float
    share: float
    cpu_share: float
    psnr: float | None
    ssim: float | None
    memory: StepMemory
    looks: tuple[Look, ...]
    trace: Trace
    ray: RayDetail | None = None
    horizons: tuple[tuple[int, int], ...] = ()
    pictures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, and the smallest and largest of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Speedup:
    """How much sooner a policy is where a baseline ends: budget / time at which it first has the baseline's final PSNR.

    factor: on the mean curves over seeds, None where that PSNR is never reached. target: that PSNR in dB. reached: in
    seconds. seeds: the same for each seed on its own curve against the same target. note: the same in a sentence.
    """

    factor: float | None
    target: float | None
    reached: float | None
    seeds: tuple[float | None, ...]
    note: str


@dataclass(frozen=True)
class Summary:
    """One row of the table: a policy over its seeds. memory: bytes; memory_saved: share of what `none` needs.

    loss_ratio_vs_none: loss over that of `none` at equal iteration, mean over the second half of the iterations that
    both did.
    """

    policy: str
    seeds: int
    psnr_quarter: Stat | None
    psnr_half: Stat | None
    psnr_end: Stat | None
    psnr_full: Stat | None
    steps: Stat
    step_ms: Stat
    rays: Stat
    share: Stat
    memory: Stat
    memory_saved: Stat
    speedup_vs_none: Speedup | None
    speedup_vs_prune: Speedup | None
    loss_ratio_vs_none: float | None


@dataclass(frozen=True)
class Setting:
    """What every run of a benchmark shares; a resumed one must be asked for the same.

    scene: absolute folder or "builtin". views: held-out views evaluated.
    """

    scene: str
    scene_digest: str
    recipe: str
    downscale: int
    seconds: float
    policies: tuple[str, ...]
    views: int


@dataclass(frozen=True)
class Shapes:
    """Sizes that the numbers depend on; width and height of the first training image in pixels."""

    train_images: int
    held_out_views: int
    width: int
    height: int
    parameters: int
    samples_per_step: int


@dataclass(frozen=True)
class Document:
    """All of `mining.json`. configs: the complete `TrainConfig` of every policy, as JSON."""

    setting: Setting
    seeds: int
    shapes: Shapes
    environment: Environment
    command: tuple[str, ...]
    started: str
    complete: bool
    configs: dict[str, object]
    runs: tuple[BenchRun, ...] = ()
    summaries: tuple[Summary, ...] = ()
    benchmark: str = "mining"
    version: int = VERSION


def write_document(folder: Path, document: Document) -> None:
    """Write `mining.json` as a whole or not at all."""
    write_json(folder / NAME, to_json(document), "write the results of the benchmark")


def read_document(folder: Path) -> Document:
    """What `write_document` wrote; `RunError` where that is missing, damaged or of another version."""
    path = folder / NAME
    try:
        data: JSON = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunError(
            f"{folder} holds no benchmark: it has no {NAME}.", hint=f"Leave out {option('resume')}."
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    if not isinstance(data, dict) or data.get("benchmark") != "mining" or data.get("version") != VERSION:
        raise RunError(
            f"{path} is no mining benchmark of this version ({VERSION}).", hint=f"Give another {option('out')}."
        )
    try:
        return from_json(Document, data)
    except ConfigError as error:
        raise RunError(f"{path} is damaged: {error.message}", hint=f"Give another {option('out')}.") from error
