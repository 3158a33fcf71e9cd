"""Checks of what an op hands to compiled kernels, which read and write wherever an index points.

Shapes, types and devices are checked everywhere. Values, such as the layout of packed rays, are checked on the CPU. On
CUDA that would wait for the device. There the Triton kernels clamp rays to the samples (`gpu_bounds`), and torch's own
indexing stops at a row that does not exist. So a wrong value gives wrong numbers there, but touches no other memory.
With the environment variable RAYMINE_CHECK=1, which is read on import, values are checked on CUDA too.

Arithmetic with `first` and `count` cannot overflow: signs are checked before anything is added or subtracted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch

VALUES_ON_CUDA = os.environ.get("RAYMINE_CHECK") == "1"
"""Whether values on CUDA are checked, which waits for the device."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def readable(tensor: Tensor) -> bool:
    """Whether the values of a tensor are checked."""
    kind = tensor.device.type
    return kind == "cpu" or (VALUES_ON_CUDA and kind == "cuda")


Row = tuple[str, Tensor | None, tuple[int, ...]]
"""Name, tensor and the shape that it must have. A tensor that is None is not checked."""


def shapes(rows: Iterable[Row], device: torch.device) -> None:
    """Every tensor has its shape and is on `device`."""
    for name, value, shape in rows:
        if value is None:
            continue
        if value.shape != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
        if value.device != device:
            raise ConfigError(f"`{name}` is on {value.device}, other arguments are on {device}. Move one of them.")


def floats(rows: Iterable[Row], device: torch.device, dtype: torch.dtype | None = None) -> torch.dtype:
    """As `shapes`, and all tensors have one floating-point type: `dtype`, or else that of the first. Returns it."""
    for name, value, shape in rows:
        if value is None:
            continue
        kind = value.dtype
        if kind is not dtype:
            if dtype is not None:
                raise ConfigError(f"`{name}` must be {dtype}, as the other arguments are, got {kind}. Convert it.")
            if not kind.is_floating_point:
                raise ConfigError(f"`{name}` must be floating point, got {kind}.")
            dtype = kind
        if value.shape != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
        if value.device != device:
            raise ConfigError(f"`{name}` is on {value.device}, other arguments are on {device}. Move one of them.")
    assert dtype is not None, "a list of tensors has at least one"
    return dtype


def together(**named: Tensor | None) -> torch.device:
    """Tensors are on one device, that of the first. Returns it."""
    device: torch.device | None = None
    for name, value in named.items():
        if value is None:
            continue
        if device is None:
            device = value.device
        elif value.device != device:
            raise ConfigError(f"`{name}` is on {value.device}, other arguments are on {device}. Move one of them.")
    assert device is not None, "there is at least one tensor"
    return device


def present(**named: Tensor) -> None:
    """Tensors have values, which those on the device `meta` have not."""
    for name, value in named.items():
        if value.device.type == "meta":
            raise ConfigError(f"`{name}` must have values, but it is on meta, which has shapes only.")


def inplace(**named: Tensor | None) -> None:
    """Tensors that a call changes are contiguous, so that no element is stored in the place of another."""
    for name, value in named.items():
        if value is not None and not value.is_contiguous():
            raise ConfigError(f"`{name}` must be contiguous, since it is updated in place.")


def numeric(**named: Tensor | None) -> torch.device:
    """As `together`, and tensors are floating point or integers."""
    for name, value in named.items():
        if value is not None and (value.is_complex() or value.dtype is torch.bool):
            raise ConfigError(f"`{name}` must be floating point or integers, got {value.dtype}.")
    return together(**named)


def reals(**named: Tensor | None) -> torch.device:
    """As `together`, and tensors are floating point, each of any precision."""
    for name, value in named.items():
        if value is not None and not value.is_floating_point():
            raise ConfigError(f"`{name}` must be floating point, got {value.dtype}. Convert it with `.float()`.")
    return together(**named)


def alike(**named: Tensor | None) -> torch.device:
    """As `reals`, and all tensors have the shape of the first, which has at least one dimension."""
    (of, first), *rest = ((name, value) for name, value in named.items() if value is not None)
    if not first.ndim:
        raise ConfigError(f"`{of}` must have shape [..., n], got a single number.")
    for name, value in rest:
        if value.shape != first.shape:
            raise ConfigError(f"`{name}` must have the shape of `{of}`, {list(first.shape)}, got {list(value.shape)}.")
    return reals(**named)


def columns(**named: Tensor) -> torch.device:
    """As `reals`, and all tensors have one shape [n]."""
    for name, value in named.items():
        if value.ndim != 1:
            raise ConfigError(f"`{name}` must have shape [n], got {list(value.shape)}.")
    return alike(**named)


def mask(name: str, value: Tensor, n: int, device: torch.device) -> None:
    """A tensor [n] of bool."""
    shapes([(name, value, (n,))], device)
    if value.dtype is not torch.bool:
        raise ConfigError(f"`{name}` must be bool, got {value.dtype}.")


def joined(**named: Tensor) -> torch.Size:
    """As `reals`, and the shapes broadcast to one with at least one dimension. Returns it."""
    reals(**named)
    parts = [list(value.shape) for value in named.values()]
    try:
        shape = torch.broadcast_shapes(*parts)
    except RuntimeError as error:
        names = ", ".join(f"`{name}`" for name in named)
        raise ConfigError(f"{names} must have one shape, got {', '.join(map(str, parts))}.") from error
    if not shape:
        raise ConfigError(f"{', '.join(f'`{name}`' for name in named)} must have shape [..., n], got single numbers.")
    return shape


def whole(low: int = 0, high: int = 2**31 - 1, **named: int) -> None:
    """Plain integers are in low .. high."""
    for name, value in named.items():
        if not low <= value <= high:
            raise ConfigError(f"`{name}` must be in {low} .. {high}, got {value}.")


def integers(name: str, value: Tensor, device: torch.device, count: int | None = None) -> Tensor:
    """A tensor [count] of integers as int64; of any length if `count` is None."""
    if value.dtype is not torch.int64 and value.dtype not in _INTEGERS:
        raise ConfigError(f"`{name}` must be integers, got {value.dtype}.")
    if value.ndim != 1 or (count is not None and value.shape[0] != count):
        length = "n" if count is None else count
        raise ConfigError(f"`{name}` must have shape [{length}], got {list(value.shape)}.")
    if value.device != device:
        raise ConfigError(f"`{name}` is on {value.device}, other arguments are on {device}. Move one of them.")
    return value if value.dtype is torch.int64 else value.long()


def pack(first: Tensor, count: Tensor, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """first, count [R] int64 of rays that follow one another without gaps and have all `samples` together.

    The `first` of a ray without samples may be anything.
    """
    first = integers("first", first, device)
    count = integers("count", count, device, first.shape[0])
    if readable(first):
        bad = _compiled(_pack_fault)(_array(first), _array(count), samples)
        if bad >= 0:
            raise _pack_error(bad, first, count, samples)
    return first, count


def ranges(first: Tensor, count: Tensor, samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """first, count [R] int64 of rays that lie within `samples`, in any order and with gaps, but share no sample."""
    first = integers("first", first, device)
    count = integers("count", count, device, first.shape[0])
    if readable(first):
        starts, counts = _array(first), _array(count)
        bad = _compiled(_range_fault)(starts, counts, samples)
        if bad >= 0:
            raise ConfigError(
                f"rays must lie within the {samples} samples: ray {bad} has `first` {int(first[bad])} and `count` "
                f"{int(count[bad])}. Was this pack made for other samples?"
            )
        # A value below -1 says that rays are not in the order of their samples, so they are sorted to find overlaps.
        if bad < -1:
            order = np.argsort(starts, kind="stable")
            order = order[counts[order] > 0]
            shared = np.flatnonzero(starts[order[1:]] < (starts + counts)[order[:-1]])
            if len(shared):
                one, two = order[shared[0]], order[shared[0] + 1]
                raise ConfigError(f"no sample may have two rays: rays {one} and {two} overlap. Check `first`, `count`.")
    return first, count


def counts(count: Tensor, device: torch.device, samples: int | None = None) -> Tensor:
    """count [R] int64, not negative, with a sum of `samples`, or of any int64 number if that is None."""
    count = integers("count", count, device)
    if readable(count):
        bad = _compiled(_count_fault)(_array(count), 2**63 - 1 if samples is None else samples)
        if 0 <= bad < len(count):
            most = "" if samples is None else f" and sum to the {samples} samples"
            raise ConfigError(f"`count` must not be negative{most}, but `count` of ray {bad} is {int(count[bad])}.")
        if bad >= 0 and samples is not None:
            raise ConfigError(f"`count` must sum to the {samples} samples, got {int(count.sum())}.")
    return count


def within(name: str, index: Tensor, n: int, device: torch.device, count: int | None = None) -> Tensor:
    """index [count] int64 in 0 .. n - 1; of any length if `count` is None."""
    index = integers(name, index, device, count)
    if readable(index) and index.shape[0]:
        low, high = (int(part) for part in torch.aminmax(index))
        if low < 0 or high >= n:
            raise ConfigError(f"`{name}` must be in 0 .. {n - 1}, got {low} .. {high}.")
    return index


def rows_within(rows: Tensor, n: int, device: torch.device, distinct: bool) -> Tensor:
    """rows [k] int64 in 0 .. n - 1, each at most once. distinct: the caller knows that no row is listed twice."""
    rows = within("rows", rows, n, device)
    if readable(rows) and not distinct and rows.shape[0]:
        listed = torch.zeros(n, dtype=torch.bool, device=device)
        listed[rows] = True
        if int(listed.sum()) < rows.shape[0]:
            raise ConfigError("`rows` must list each row at most once. Add up the gradients of equal rows first.")
    return rows


def numbers(**named: float) -> None:
    """Plain numbers are not NaN."""
    for name, value in named.items():
        if value != value:
            raise ConfigError(f"`{name}` must be a number, got {value}.")


def _pack_error(bad: int, first: Tensor, count: Tensor, samples: int) -> ConfigError:
    rule = f"rays must follow one another without gaps and have all {samples} samples together"
    if bad == len(first):
        return ConfigError(f"{rule}; `count` sums to {int(count.sum())}. Was this pack made for other samples?")
    return ConfigError(
        f"{rule}; ray {bad} has `first` {int(first[bad])} and `count` {int(count[bad])}, and {int(count[:bad].sum())} "
        f"samples lie before it. `pack_counts` makes a pack from counts."
    )


def _array(tensor: Tensor) -> np.ndarray:
    values = (tensor.cpu() if tensor.is_cuda else tensor).numpy()
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)


@cache
def _compiled(function: Callable[..., int]) -> Callable[..., Any]:
    """The function compiled by Numba, or itself where Numba is missing."""
    if dispatch.numba_problem():
        return function
    from raymine.kernels._numba import device_function

    return device_function(function)


def _pack_fault(first, count, samples):  # type: ignore[no-untyped-def]
    """The first ray that breaks the rule of `pack`, R if only the sum of counts is wrong, or -1."""
    # Usually the `first` of empty rays is in order too. Then a pass of vector instructions, in which no ray depends on
    # another, shows that all is well. A sum that overflows is negative, and no `first` is.
    rays = first.shape[0]
    if rays and first[0] == 0 and first[rays - 1] + count[rays - 1] == samples:
        signs, gaps = first[rays - 1] | count[rays - 1], 0
        for r in range(rays - 1):
            signs |= first[r] | count[r]
            gaps |= (first[r] + count[r]) ^ first[r + 1]
        if signs >= 0 and gaps == 0:
            return -1
    end = 0
    for r in range(first.shape[0]):
        n = count[r]
        if n < 0 or n > samples - end or (n > 0 and first[r] != end):
            return r
        end += n
    return -1 if end == samples else first.shape[0]


def _count_fault(count, samples):  # type: ignore[no-untyped-def]
    """The first ray with a negative count, or with more samples than are left; R if some are left over, or -1."""
    left = samples
    for r in range(count.shape[0]):
        if count[r] < 0 or count[r] > left:
            return r
        left -= count[r]
    return -1 if left == 0 else count.shape[0]


def _range_fault(first, count, samples):  # type: ignore[no-untyped-def]
    """The first ray outside of the samples; otherwise -1, or -2 if rays are not in the order of their samples."""
    end, order = 0, -1
    for r in range(first.shape[0]):
        start, n = first[r], count[r]
        if start < 0 or n < 0 or n > samples or start > samples - n:
            return r
        if n > 0:
            if start < end:
                order = -2
            end = start + n
    return order
