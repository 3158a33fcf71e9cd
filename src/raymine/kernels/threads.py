"""The threads of a CPU: how many are used, and torch functions whose results do not depend on that.

torch divides a large array evenly among its threads. Results then follow the number of threads in three cases:

    a sum over all elements    adds one partial sum per thread
    sigmoid, powers            evaluate the last few elements of each thread's share by another routine
    a matrix product           is up to the BLAS library; MKL splits long sums on Intel processors

`total`, `mean`, `sigmoid` and `power` divide the array into pieces of a fixed size instead. For matrix products, a run
keeps the number of threads that it began with (`using_threads`); with `MKL_CBWR=AUTO,STRICT` in the environment most of
MKL's products do not depend on it either. `tests/kernels/test_threads.py` runs each torch function of a training step
with several numbers of threads. The Numba kernels do not depend on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_PIECE = 1 << 12
"""Elements of a piece. Below 2^15 elements torch uses one thread."""


def total(values: Tensor) -> Tensor:
    """The sum [] of all elements. Differentiable."""
    if values.numel() <= _PIECE:
        return values.sum()
    return row_totals(values.reshape(-1))


def row_totals(values: Tensor) -> Tensor:
    """values [..., n] -> sums [...] along the last dimension. Differentiable."""
    n = values.shape[-1]
    if values.device.type != "cpu" or n <= _PIECE:
        return values.sum(-1)
    whole = n // _PIECE * _PIECE
    # The threads divide the pieces among themselves, and each piece is summed by one thread.
    pieces = values[..., :whole].unflatten(-1, (-1, _PIECE)).sum(-1)
    return row_totals(pieces) + values[..., whole:].sum(-1)


def mean(values: Tensor) -> Tensor:
    """The mean [] of all elements; NaN if there are none. Differentiable."""
    return total(values) / values.numel()


def sigmoid(values: Tensor) -> Tensor:
    """1 / (1 + exp(-values)), elementwise. Differentiable."""
    if values.device.type != "cpu" or values.numel() <= _PIECE:
        return torch.sigmoid(values)
    return torch.cat([torch.sigmoid(piece) for piece in values.reshape(-1).split(_PIECE)]).view(values.shape)


def power(values: Tensor, exponent: float) -> Tensor:
    """values ** exponent, elementwise. Differentiable."""
    if values.device.type != "cpu" or values.numel() <= _PIECE:
        return values**exponent
    return torch.cat([piece**exponent for piece in values.reshape(-1).split(_PIECE)]).view(values.shape)


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Within the block, torch uses exactly `count` threads, even if there are fewer cores; Numba at most as many.

    Numba sets torch's number of threads to its own when its first parallel kernel runs, because both share OpenMP.
    Therefore this starts Numba's threads before it sets the number of torch.
    """
    import numba

    before = torch.get_num_threads(), numba.get_num_threads()
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]  # made at run time
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
