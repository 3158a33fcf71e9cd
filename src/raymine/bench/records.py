"""The records of `mining.json`, the result of the mining benchmark. They read back exactly as they were written.

Seconds are training seconds (steps only), PSNR is in dB, memory in bytes. A missing value is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from raymine.config import from_json, to_json
from raymine.errors import ConfigError, RunError, option
from raymine.files import JSON, UnreadableFile, read_json, write_json
from raymine.mining.diagnose import Diagnosis
from raymine.rundir import Environment

VERSION = 1
"""The version of the format. It increases whenever an old reader would misread a new file."""

NAME = "mining.json"


@dataclass(frozen=True)
class Look:
    """One quick evaluation during a run.

    psnr: mean over held-out views, on a grid of their pixels; None if every pixel is masked. diagnosis: of one training
    batch at that time, with the samples that the policy chooses.
    """

    seconds: float
    step: int
    psnr: float | None
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Trace:
    """Means over blocks of consecutive steps, at most a few hundred blocks. All tuples have the same length.

    step, seconds: at the end of a block. count: finite steps of the block. loss, mse, rays, marched, trained: means per
    step. tau, budget: of the miner; empty for policies without one.
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
    """Peak bytes of one step (see `raymine.bench.memory`) with this policy, and with `none` on the same batch."""

    policy: int
    none: int
    rays: int
    marched: int
    trained: int


@dataclass(frozen=True)
class RayDetail:
    """The samples of one ray: distance t in world units, rendering weight, gradient norm G, whether it is chosen."""

    t: tuple[float, ...]
    weight: tuple[float, ...]
    gradient: tuple[float, ...]
    chosen: tuple[bool, ...]


@dataclass(frozen=True)
class BenchRun:
    """One run of a benchmark: a policy trained with one seed.

    rays, share: rays per step, and trained / marched samples (b/B), over the last tenth of the steps.
    cpu_share: processor seconds per second of training, over all threads of this process. If other programs use the
        machine, it is lower than on an idle machine, and times are then not reliable.
    psnr, ssim: full evaluation at the end, on every pixel of every view. skipped: number of non-finite steps.
    horizons: of the learning-rate schedule, as (step, expected total steps). ray: one hard ray of the last batch.
    pictures: PNG files in `pictures/`, by kind (`truth`, `predicted`, `error`, `hard`); of seed 0 only.
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
    """The mean over seeds, and the smallest and the largest value."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Speedup:
    """How much sooner a policy reaches the final PSNR of a baseline: budget / time at which it first reaches it.

    factor: of the mean curves over seeds; None if that PSNR is never reached. target: that PSNR in dB. reached: the
    time in seconds. seeds: the factor of each seed's own curve, for the same target. note: the result as a sentence.
    """

    factor: float | None
    target: float | None
    reached: float | None
    seeds: tuple[float | None, ...]
    note: str


@dataclass(frozen=True)
class Summary:
    """One row of the table: a policy over its seeds.

    psnr_quarter, psnr_half, psnr_end: on a grid of pixels, at shares of the budget. psnr_full: at the end, on all
    pixels. memory: peak bytes of a step. memory_saved: the saved share of what `none` needs. loss_ratio_vs_none: loss /
    loss of `none` at equal iteration, averaged over the second half of the iterations that both have.
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
    """The settings that all runs of a benchmark share. They must be the same when it is resumed.

    scene: an absolute folder, or "builtin". views: number of held-out views that are evaluated.
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
    """Sizes on which the results depend. width, height: of the first training image, in pixels."""

    train_images: int
    held_out_views: int
    width: int
    height: int
    parameters: int
    samples_per_step: int


@dataclass(frozen=True)
class Document:
    """The content of `mining.json`. configs: the complete `TrainConfig` of every policy, as JSON."""

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
    """Write `mining.json` atomically."""
    write_json(folder / NAME, to_json(document), "write the results of the benchmark")


def read_document(folder: Path) -> Document:
    """Read `mining.json`; `RunError` if it is missing, damaged or of another version."""
    path = folder / NAME
    if not path.exists():
        raise RunError(f"{folder} holds no benchmark: it has no {NAME}.", hint=f"Leave out {option('resume')}.")
    try:
        data: JSON = read_json(path)
    except UnreadableFile as error:
        raise RunError(f"{path} {error.what}", hint=f"Give another {option('out')}.") from error
    if not isinstance(data, dict) or data.get("benchmark") != "mining" or data.get("version") != VERSION:
        raise RunError(
            f"{path} is no mining benchmark of this version ({VERSION}).", hint=f"Give another {option('out')}."
        )
    try:
        return from_json(Document, data)
    except ConfigError as error:
        raise RunError(f"{path} is damaged: {error.message}", hint=f"Give another {option('out')}.") from error
