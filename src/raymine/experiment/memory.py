"""Refuse a run that cannot fit in memory before it is started, and say so in words when one runs out anyway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from raymine.contracts import Bounds, EstimatesMemory, Memory
from raymine.engines import problem_with
from raymine.errors import ResourceError, option
from raymine.step import TrainConfig

# Activations and their gradients of one sample, for a field that does not estimate its own.
_BYTES_PER_SAMPLE = 4096
# The fused step keeps no activation: where a sample is, what was found there, and what it is worth.
_FUSED_BYTES_PER_SAMPLE = 64
# Where pieces of a batch are evaluated one after the other: what is known of a sample outside of its piece.
_BYTES_OUTSIDE = 256
# The ray count adapts after the fact, so a batch can come out larger than asked.
_OVERSHOOT = 2


def estimate_bytes(config: TrainConfig, bounds: Bounds, device: str = "cpu") -> int:
    """Bytes that a training state and one step take, besides images. An estimate on the high side."""
    samples = config.batch.samples * _OVERSHOOT
    parts = [_memory(part, bounds) for part in (config.field, config.sampler)]
    per_sample = sum(part.per_sample for part in parts) or _BYTES_PER_SAMPLE
    if not problem_with(config, device, training=True):
        batch = samples * _FUSED_BYTES_PER_SAMPLE
    elif config.recompute_samples:
        batch = min(samples, config.recompute_samples) * per_sample + samples * _BYTES_OUTSIDE
    else:
        batch = samples * per_sample
    return sum(part.fixed for part in parts) + batch


def _memory(config: object, bounds: Bounds) -> Memory:
    """What a part says of itself; nothing is known of one that says nothing."""
    return config.memory(bounds) if isinstance(config, EstimatesMemory) else Memory()


def available_bytes(device: torch.device) -> int:
    """Memory that a new process can have on `device`, the limit of a container included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(int(psutil.virtual_memory().available), _container_bytes())


def require_memory(config: TrainConfig, bounds: Bounds, device: torch.device) -> None:
    """`ResourceError` when the estimate exceeds what is available."""
    needed, free = estimate_bytes(config, bounds, device.type), available_bytes(device)
    if needed > free:
        raise ResourceError(
            f"Training needs about {_gib(needed)} of memory on {device}, and {_gib(free)} is free.",
            hint="Make the model smaller (field.grid.log2_entries, batch.samples), or free some memory.",
        )


@contextlib.contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Turn the several ways in which torch and Python run out of memory into one `ResourceError`."""
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


def _container_bytes() -> int:
    """What the control group still allows; practically unlimited where there is none."""
    limit_file, used_file = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        limit, used = limit_file.read_text().strip(), int(used_file.read_text())
        return max(0, int(limit) - used) if limit != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
