"""The Adam update: checks and dispatch (definition in `reference`). It works in place; the caller owns the moments."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.adam import reference
from raymine.kernels.adam.reference import Rates as Rates


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, *, sparse: bool = False) -> None:
    """Apply one step to `parameter` and to its moments m and v, in place. Not differentiable.

    parameter, grad, m, v: the same shape; all but grad must be contiguous. m: None if and only if beta1 is 0.
    sparse: skip elements whose gradient is exactly 0.
    """
    kind = _check(parameter, ("grad", grad, parameter.shape), m, v, rates)
    backend = dispatch.choose("adam", parameter.device)
    if backend == "reference" or kind is not torch.float32:
        reference.update(parameter.detach(), grad.detach(), m, v, rates, sparse)
    else:
        with dispatch.kernel_lock:
            kernels = dispatch.kernels("adam", backend)
            kernels.update(parameter.detach(), grad.detach().contiguous(), m, v, rates, sparse)


def update_rows(
    parameter: Tensor,
    rows: Tensor,
    grad: Tensor,
    m: Tensor | None,
    v: Tensor,
    rates: Rates,
    *,
    distinct: bool = False,
) -> None:
    """Apply one step to some rows of `parameter` [n, F] and of its moments m, v [n, F], in place. Not differentiable.

    rows [k] int64: each row at most once. grad [k, F]: the gradient of these rows. Elements whose gradient is exactly 0
    are skipped. The result equals `update` with sparse=True, without decay, and a gradient [n, F] that is 0 elsewhere.
    distinct: the caller knows that no row is listed twice, so that nothing has to be searched.
    """
    if parameter.ndim != 2:
        raise ConfigError(f"`parameter` must have shape [n, F], got {list(parameter.shape)}.")
    rows = checks.rows_within(rows, parameter.shape[0], parameter.device, distinct)
    kind = _check(parameter, ("grad", grad, (rows.shape[0], parameter.shape[1])), m, v, rates)
    if dispatch.choose("adam", parameter.device) == "cpu" and kind is torch.float32:
        with dispatch.kernel_lock:
            kernels = dispatch.kernels("adam", "cpu")
            kernels.update_rows(parameter.detach(), rows.contiguous(), grad.detach().contiguous(), m, v, rates)
    else:
        # On CUDA nearly all the time goes into gathering and scattering the rows, so a kernel gains nothing (0.97x).
        reference.update_rows(parameter.detach(), rows, grad.detach(), m, v, rates)


def _check(parameter: Tensor, grad: checks.Row, m: Tensor | None, v: Tensor, rates: Rates) -> torch.dtype:
    """Shapes, devices, memory layout and rates. Returns the type of all tensors."""
    shape = parameter.shape
    rows = (("parameter", parameter, shape), grad, ("m", m, shape), ("v", v, shape))
    kind = checks.floats(rows, parameter.device)
    for name, rate in (("beta1", rates.beta1), ("beta2", rates.beta2)):
        if not 0 <= rate < 1:
            raise ConfigError(f"`{name}` must be in [0, 1), got {rate}.")
    if rates.count < 1:
        raise ConfigError(f"`count` must be at least 1, the number of this update, got {rates.count}.")
    if rates.gate is not None:
        checks.shapes((("gate", rates.gate, ()),), parameter.device)
        if rates.gate.dtype != torch.bool:
            raise ConfigError(f"`gate` must be bool, got {rates.gate.dtype}.")
    if (m is None) != (rates.beta1 == 0):
        raise ConfigError(f"`m` must be None just where beta1 is 0; beta1 is {rates.beta1}.")
    checks.inplace(parameter=parameter, m=m, v=v)
    return kind
