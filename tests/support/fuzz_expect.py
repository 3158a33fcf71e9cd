"""Properties for fuzz cases: a result equals that of a brute-force computation in float64, written with NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.fuzz import Args
from support.fuzz_results import leaves
from support.fuzz_worker import all_finite

Array = np.ndarray

HUGE = 1e12
"""Arguments beyond this overflow float32 somewhere in most formulas."""

COARSE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest deviation of a result if it or an argument is in half precision."""


def equals(expected: Callable[..., Any], close: float = 1e-4) -> Callable[[Args, Any], str]:
    """The property that a result equals `expected`, which gets the arguments as arrays of float64, int64 or bool.

    close: as in `Case`; coarser in half precision. Where one value is not finite, the other must not be either. With
    NaN, infinity or huge numbers among the arguments: not finite somewhere if `expected` is not, and of the same
    shapes. An exception of `expected` says that the arguments were to be refused.
    """

    @careful
    def holds(args: Args, result: Any) -> str:
        wanted = list(_parts(expected(**{name: plain(value) for name, value in args.items()})))
        found = [part for _, part in leaves(result) if part is not None]
        if len(found) != len(wanted):
            return f"the result has {len(found)} parts instead of {len(wanted)}"
        usual = moderate(args)
        types = {part.dtype for _, part in leaves((args, result)) if isinstance(part, Tensor)}
        coarse = max(COARSE.get(kind, 0.0) for kind in types | {torch.float32})
        for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            if isinstance(ours, Tensor) and ours.is_floating_point():
                theirs = np.where(np.abs(theirs) > torch.finfo(ours.dtype).max, np.inf, theirs)
            bad = _apart(plain(ours), theirs, max(close, coarse), usual)
            if bad:
                return f"part {i} {bad}"
        if all_finite(result) and not all(np.isfinite(part).all() for part in wanted):
            return "the result is finite, but that of the brute force is not"
        return ""

    return holds


def careful(holds: Callable[[Args, Any], str]) -> Callable[[Args, Any], str]:
    """A property whose exceptions say that the arguments were to be refused."""

    @functools.wraps(holds)
    def checked(args: Args, result: Any) -> str:
        try:
            with np.errstate(all="ignore"):
                return holds(args, result)
        except Exception as error:
            return f"answered, but the arguments are wrong: {type(error).__name__}: {error}"

    return checked


def renamed(holds: Any, **names: str) -> Any:
    """A property for arguments with other names: names[theirs] = ours."""
    return lambda args, result: holds({names.get(name, name): value for name, value in args.items()}, result)


def moderate(args: Args) -> bool:
    """Whether all arguments are finite and none is huge."""
    for _, value in leaves(args):
        if isinstance(value, (Tensor, int, float)):
            array = np.abs(np.asarray(plain(value)))
            if array.size and not bool((array.astype(np.float64) <= HUGE).all()):
                return False
    return True


def plain(value: Any) -> Any:
    """A tensor as an array of float64, complex128, int64 or bool; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    kind = torch.complex128 if value.is_complex() else torch.float64 if value.is_floating_point() else torch.int64
    return value.detach().to(torch.bool if value.dtype == torch.bool else kind).numpy().copy()


def _parts(value: Any) -> Sequence[Array]:
    if isinstance(value, (tuple, list)):
        return [part for each in value for part in _parts(each)]
    return [np.asarray(value)]


def _apart(ours: Any, theirs: Array, close: float, usual: bool) -> str:
    ours = np.asarray(ours)
    if ours.shape != theirs.shape:
        return f"has shape {list(ours.shape)} instead of {list(theirs.shape)}"
    if not usual or not ours.size:
        return ""
    if theirs.dtype.kind in "bi" and ours.dtype.kind in "bi":
        return "" if np.array_equal(ours, theirs) else f"is {ours.reshape(-1)[:6]} instead of {theirs.reshape(-1)[:6]}"
    finite = np.isfinite(theirs)
    if finite.any() and np.abs(theirs[finite]).max() > HUGE:
        return ""
    if not np.array_equal(np.isfinite(ours), finite):
        return "is finite in other places than the brute force"
    if not finite.any():
        return ""
    most, off = np.abs(theirs[finite]).max(), np.abs(ours - theirs)[finite].max()
    return "" if off <= close * max(1.0, most) else f"differs by {off:.3g}, largest value {most:.3g}"


def require(condition: Any, what: str) -> None:
    """For brute-force functions: arguments that break a documented rule must have been refused."""
    if not condition:
        raise ValueError(what)


def flat(array: Array, kinds: str = "f") -> Array:
    """An array of one dimension and of one of some kinds of types."""
    require(array.ndim == 1 and array.dtype.kind in kinds, f"{array.dtype} of shape {array.shape}")
    return array


def alike(*arrays: Array) -> None:
    """Arrays that must have one shape."""
    require(len({array.shape for array in arrays}) == 1, f"shapes {[array.shape for array in arrays]}")
    require(all(array.dtype == np.float64 for array in arrays), f"types {[array.dtype for array in arrays]}")


def by_ray(
    function: Callable[..., Any], first: Array, count: Array, *columns: Array, gaps: bool = False
) -> tuple[Array, ...]:
    """`function` of the columns [B, ...] of each ray, put together again; it returns one or several columns.

    gaps: whether a sample may be without a ray; it gets NaN.
    """
    n = len(columns[0])
    alike(*columns)
    seen = np.zeros(n, dtype=np.int64)
    outs: list[Array] | None = None
    for start, many in zip(first, count, strict=True):
        require(0 <= many <= n, "count")
        if many:
            require(0 <= start <= n - many, "first")
        rows = slice(start, start + many) if many else slice(0, 0)
        seen[rows] += 1
        parts = function(*(column[rows] for column in columns))
        parts = parts if isinstance(parts, tuple) else (parts,)
        if outs is None:
            outs = [np.full((n, *part.shape[1:]), np.nan) for part in parts]
        for out, part in zip(outs, parts, strict=True):
            out[rows] = part
    require((seen <= 1).all(), "two rays share a sample")
    require(gaps or (seen == 1).all(), "a sample has no ray")
    if outs is None:
        require(n == 0 or gaps, "samples without rays")
        parts = function(*(column[:0] for column in columns))
        outs = [np.full((n, *part.shape[1:]), np.nan) for part in (parts if isinstance(parts, tuple) else (parts,))]
    return tuple(outs)


def sums_by_ray(values: Array, first: Array, count: Array) -> Array:
    """Sums [R, ...] of values [B, ...] over the samples of each ray."""
    by_ray(lambda column: column, first, count, values, gaps=True)
    out = np.zeros((len(first), *values.shape[1:]))
    for r, (start, many) in enumerate(zip(first, count, strict=True)):
        out[r] = values[start : start + many].sum(0) if many else 0.0
    return out
