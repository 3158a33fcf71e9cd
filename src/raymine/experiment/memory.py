"""Estimate the memory of a run before it starts, and turn out-of-memory errors into `ResourceError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from raymine.contracts import Bounds, EstimatesMemory, Memory
from raymine.engines import problem_with
from raymine.errors import ResourceError, option
from raymine.machine import free_memory
from raymine.step import TrainConfig

# Activations and gradients of one sample, for a field that gives no estimate.
_BYTES_PER_SAMPLE = 4096
# The fused step stores no activations, only position, outputs, gradients and weight of a sample.
_FUSED_BYTES_PER_SAMPLE = 64
# With `recompute_samples`: what is stored of a sample while other pieces are evaluated.
_BYTES_OUTSIDE = 256
# The ray count adapts with a delay, so a batch can be larger than asked.
_OVERSHOOT = 2


def estimate_bytes(config: TrainConfig, bounds: Bounds, device: str = "cpu", fused: bool | None = None) -> int:
    """Bytes that a training state and one step need, without images. The estimate is rather too high.

    fused: whether the fused step trains it; None asks whether it does on this machine.
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


def _memory(config: object, bounds: Bounds) -> Memory:
    """The estimate of a part; zeros if it gives none."""
    return config.memory(bounds) if isinstance(config, EstimatesMemory) else Memory()


def available_bytes(device: torch.device) -> int:
    """Bytes of memory that are free on `device`, within the limit of a container."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return free_memory()


def require_memory(config: TrainConfig, bounds: Bounds, device: torch.device) -> None:
    """Raise `ResourceError` if the estimate exceeds the free memory."""
    needed, free = estimate_bytes(config, bounds, device.type), available_bytes(device)
    if needed > free:
        raise ResourceError(
            f"Training needs about {_gib(needed)} of memory on {device}, and {_gib(free)} is free.",
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
        # The CPU allocator of torch raises a plain RuntimeError.
        if "can't allocate memory" not in str(error):
            raise
        raise _ran_out(device, error) from error


def _ran_out(device: torch.device, error: BaseException) -> ResourceError:
    return ResourceError(
        f"Out of memory on {device}: {str(error).splitlines()[0] if str(error) else 'no detail given'}",
        hint=f"Train with a larger {option('downscale')} or a smaller batch (batch.samples), or free some memory.",
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
