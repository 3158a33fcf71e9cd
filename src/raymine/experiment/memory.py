"""The memory of a run: its limit, an estimate before it starts, the share of images, and out-of-memory errors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from raymine.contracts import Bounds, EstimatesMemory, Memory
from raymine.engines import Phase, draws_on_device, phases_of, problem_with
from raymine.errors import ConfigError, ResourceError, option
from raymine.machine import free_memory
from raymine.quantities import size
from raymine.step import TrainConfig

# Activations and gradients of one sample, for a field that gives no estimate.
_BYTES_PER_SAMPLE = 4096
# The fused step stores no activations, only position, outputs, gradients and weight of a sample.
_FUSED_BYTES_PER_SAMPLE = 64
# With `recompute_samples`: what is stored of a sample while other pieces are evaluated.
_BYTES_OUTSIDE = 256
# The ray count adapts with a delay, so a batch can be larger than asked.
_OVERSHOOT = 2

CONTEXT = 640 << 20
"""Bytes of device memory left to CUDA and loaded kernels, beside what torch allocates. An allowance, not measured."""
LEAST_LIMIT = 1 << 30
"""The smallest limit of device memory."""
_RENDERING = 320 << 20
"""Bytes of a renderer's buffers (`engines.fused.renderer`) where memory is short; a first evaluation takes them."""
_GAPS = 0.1
"""Share of the device memory that is kept free of images, for gaps between allocations."""

_RAN_OUT = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""What messages of plain RuntimeErrors say if memory ran out."""

_limits: dict[int, int] = {}
"""Bytes that torch may allocate on a CUDA device, by its index, where there is a limit."""


def estimate_bytes(config: TrainConfig, bounds: Bounds, device: str = "cpu", fused: bool | None = None) -> int:
    """Bytes that a training state and one step need, without images. The estimate is rather too high.

    fused: whether the fused step trains it; None asks whether it does on this machine. Of a run that refines poses for
    a part of its time, it is a step with refinement, which needs most.
    """
    samples = config.batch.samples * _OVERSHOOT
    parts = [_memory(part, bounds) for part in (config.field, config.sampler)]
    per_sample = sum(part.per_sample for part in parts) or _BYTES_PER_SAMPLE
    if config.amp in ("fp16", "bf16"):
        per_sample //= 2
    if not problem_with(config, device, training=True) if fused is None else fused:
        batch = samples * _FUSED_BYTES_PER_SAMPLE
    elif config.recompute_samples:
        batch = min(samples, config.recompute_samples) * per_sample + samples * _BYTES_OUTSIDE
    else:
        batch = samples * per_sample
    return sum(part.fixed for part in parts) + batch


def beside_bytes(config: TrainConfig, bounds: Bounds) -> int:
    """Bytes of device memory that a run needs beside its steps, without images: to evaluate, and to save.

    These are the average and the half-precision copies of the parameters (in training and in the renderer), the
    renderer's buffers, and the copy of the state that a checkpoint is written from. The estimate is rather too high.
    """
    fixed = sum(_memory(part, bounds).fixed for part in (config.field, config.sampler))
    # `fixed` holds four numbers for each parameter: value, gradient and two moments.
    copies, average, saved = fixed // 8 * 2, fixed // 4, fixed
    return copies + average + saved + _RENDERING


def _memory(config: object, bounds: Bounds) -> Memory:
    """The estimate of a part; zeros if it gives none."""
    return config.memory(bounds) if isinstance(config, EstimatesMemory) else Memory()


def available_bytes(device: torch.device, sharing: int = 1) -> int:
    """Bytes of memory that are free for this process on `device`, within its limit and that of a container.

    sharing: processes of the run that share a CUDA device.
    """
    if device.type == "cuda":
        taken = torch.cuda.memory_allocated(device)
        # What torch keeps for later allocations counts as free.
        free = (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - taken) // sharing
        limit = _limits.get(_index(device)) if _limits else None
        return int(free) if limit is None else max(0, min(int(free), limit - taken))
    return free_memory()


@contextlib.contextmanager
def memory_limit(device: torch.device, limit: int, sharing: int = 1) -> Iterator[None]:
    """Within the block the run takes at most `limit` bytes of a CUDA device: torch refuses to allocate more.

    sharing: processes of the run that share the device; each takes its part. `ConfigError` for a limit on a CPU, or one
    that is too small for anything.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"{option('gpu_memory')} limits the memory of a GPU, and this run trains on the CPU.", hint="Leave it out."
        )
    if limit < LEAST_LIMIT * sharing:
        each = f" for {sharing} processes on one GPU" if sharing > 1 else ""
        raise ConfigError(
            f"{option('gpu_memory')} must be at least {size(LEAST_LIMIT * sharing)}{each}, got {size(limit)}.",
            hint=f"CUDA itself takes about {size(CONTEXT)}{' in each' if each else ' of it'}.",
        )
    limit //= sharing
    index, total = _index(device), torch.cuda.get_device_properties(device).total_memory
    _limits[index] = limit - CONTEXT
    torch.cuda.set_per_process_memory_fraction(min(1.0, _limits[index] / total), index)
    try:
        yield
    finally:
        del _limits[index]
        torch.cuda.set_per_process_memory_fraction(1.0, index)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@dataclass(frozen=True)
class ImagePlace:
    """Where the images of a run are while it trains. memory: as `TrainConfig.image_memory`.

    sentence: for the user. reason: why. Both are empty where the host draws the rays.
    """

    memory: int | None = None
    sentence: str = ""
    reason: str = ""


def place_images(
    config: TrainConfig,
    sizes: np.ndarray,
    masked: bool,
    bounds: Bounds,
    device: torch.device,
    *,
    decided: bool = False,
    sharing: int = 1,
) -> ImagePlace:
    """Decide whether all images, sizes [I, 2], are on the device at once, or how many bytes of them at a time.

    decided: the config says it, as that of a resumed run does, which has to draw what it would have drawn. sharing:
    processes of the run that share the free memory of this device.
    """
    factors = factors_on_device(config, device.type)
    if not factors:
        return ImagePlace(config.image_memory)
    needed = int(sizes.prod(1).sum()) * (5 if masked else 4)
    whole = sum(needed // factor**2 for factor in factors)
    free, working = available_bytes(device, sharing), estimate_bytes(config, bounds, device.type)
    # A further engine has gradients, a half-precision table and buffers of its own.
    further = (len({phase.kind for phase in phases_of(config)}) - 1) * (working // 2)
    room = free - working - further - beside_bytes(config, bounds) - math.floor(_GAPS * free)
    memory = config.image_memory
    if memory is None and not decided and whole > room:
        # Bands are a window of each engine's own.
        memory = max(room // len(_drawing(replace(config, image_memory=1), device.type)), 1)
    reason = f"{size(free)} of device memory are free, and a step takes about {size(working)}"
    if memory is None or needed <= memory:
        return ImagePlace(memory, f"Images: {size(whole)} on the device.", f"Images: {reason}.")
    from raymine.engines.fused.rotation import STEPS, cut_bands, plan_rotation

    rotation = plan_rotation(cut_bands(sizes), memory, 5 if masked else 4, 0)
    told = (
        f"Images: {size(needed)}, of which {size(memory)} at a time on the device; every part has its turn in "
        f"{rotation.steps_a_round:,} steps."
    )
    moved = f"{rotation.moved} of {rotation.bands:,} bands of rows are replaced every {STEPS} steps"
    return ImagePlace(memory, told, f"Images: {reason}; {moved}.")


def factors_on_device(config: TrainConfig, device: str) -> list[int]:
    """The divisors of the image size for which the device holds images; [] if the host draws the rays all the time.

    Engines of several phases (`engines/phased.py`) share images of one size.
    """
    return list(dict.fromkeys(phase.factor for phase in _drawing(config, device)))


def _drawing(config: TrainConfig, device: str) -> list[Phase]:
    """The phases of a run whose rays are drawn on the device, one of each kind."""
    kinds = {phase.kind: phase for phase in phases_of(config) if draws_on_device(phase.config(config), device)}
    return list(kinds.values())


def require_memory(config: TrainConfig, bounds: Bounds, device: torch.device, sharing: int = 1) -> None:
    """Raise `ResourceError` if the estimate exceeds the free memory. sharing: as for `available_bytes`."""
    needed, free = estimate_bytes(config, bounds, device.type), available_bytes(device, sharing)
    if needed > free:
        raise ResourceError(
            f"Training needs about {size(needed)} of memory on {device}, and {size(free)} is free.",
            hint="Make the model smaller (field.grid.log2_entries, batch.samples), or free some memory.",
        )


@contextlib.contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Turn every out-of-memory error of torch and Python into a `ResourceError`."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _ran_out(device, error) from error
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _ran_out(device, error) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out.

    The CPU allocator of torch, CUDA outside of that of torch (graphs, modules) and cuBLAS raise plain RuntimeErrors.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    told = str(error)
    return isinstance(error, RuntimeError) and any(words in told for words in _RAN_OUT)


def _ran_out(device: torch.device, error: BaseException) -> ResourceError:
    return ResourceError(
        f"Out of memory on {device}: {str(error).splitlines()[0] if str(error) else 'no detail given'}",
        hint=f"Train with a larger {option('downscale')} or a smaller batch (batch.samples), or free some memory."
        + (f" The limit is {option('gpu_memory')}." if _limits else ""),
    )
