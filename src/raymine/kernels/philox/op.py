"""Random numbers without state: the same (seed, step, stream, index) gives the same number on every device.

A stream has one purpose (pixels, jitter, background, ...). Streams share no numbers, so a new stream does not change
the others. There is no generator state to save: a resumed run draws the same numbers as an uninterrupted one. Ranks of
a distributed run can draw disjoint parts of one stream: `first` is the index of the first number.
"""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.philox import reference


class Stream(IntEnum):
    """The purpose of a random number. The values are part of the checkpoint format: never reuse one."""

    PIXEL = 0
    BACKGROUND = 1
    JITTER = 2
    OCCUPANCY_CELL = 3
    OCCUPANCY_OFFSET = 4
    INITIAL = 5
    MINING = 6
    CELL = 7
    OCCUPANCY_TIME = 8
    ROUND = 9
    BAND = 12


MOST = 1 << 40
"""Most numbers of one call."""


def words(seed: int, step: int, stream: int, n: int, device: torch.device | str = "cpu", *, first: int = 0) -> Tensor:
    """[n] int64 in 0 .. 2^32 - 1: the random 32-bit words with indices first .. first + n - 1."""
    if not 0 <= n <= MOST or not 0 <= step < 2**32 or not 0 <= stream < 2**32:
        raise ConfigError(
            f"`n` must be in 0 .. 2^40, `step` and `stream` in 0 .. 2^32 - 1; got {n}, {step} and {stream}."
        )
    if not 0 <= first <= 2**62:
        raise ConfigError(f"`first` must be in 0 .. 2^62, got {first}.")
    device = torch.device(device)
    backend = dispatch.choose("philox", device)
    if backend == "cpu" or (backend == "gpu" and n < 2**31 - 4):
        with dispatch.kernel_lock:
            return dispatch.kernels("philox", backend).words(seed, step, stream, n, device, first)
    return reference.words(seed, step, stream, n, device, first)


def uniform(
    seed: int, step: int, stream: int, shape: tuple[int, ...], device: torch.device | str = "cpu", *, first: int = 0
) -> Tensor:
    """float32 of `shape`, uniform in [0, 1). Numbers have 24 random bits, so that none rounds up to 1.

    first: index of the first number; indices run fastest along the last dimension.
    """
    if any(side < 0 for side in shape):
        raise ConfigError(f"`shape` must not have negative sides, got {list(shape)}.")
    n = math.prod(shape)
    return ((words(seed, step, stream, n, device, first=first) >> 8).float() * 2.0**-24).reshape(shape)


def integers(
    seed: int, step: int, stream: int, n: int, high: int, device: torch.device | str = "cpu", *, first: int = 0
) -> Tensor:
    """[n] int64, uniform in 0 .. high - 1, with high <= 2^31. A number is word * high >> 32.

    first: index of the first number.
    """
    if not 0 < high <= 2**31:
        raise ConfigError(f"`high` must be in 1 .. 2^31, got {high}.")
    return (words(seed, step, stream, n, device, first=first) * high) >> 32
