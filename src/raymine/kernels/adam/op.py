"""The Adam update: checks and dispatch (definition in `reference`). It works in place; the caller owns the moments."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.adam import reference
from raymine.kernels.adam.reference import Rates as Rates


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, *, sparse: bool = False) -> None:
    """Apply one step to `parameter` and to its moments m and v, in place. Not differentiable.

    parameter, grad, m, v: the same shape; all but grad must be contiguous. m: None if and only if beta1 is 0.
    sparse: skip elements whose gradient is exactly 0.
    """
    for name, value in (("grad", grad), ("m", m), ("v", v)):
        if value is not None and value.shape != parameter.shape:
            raise ConfigError(
                f"`{name}` must have the parameter's shape {list(parameter.shape)}, got {list(value.shape)}."
            )
    _require_moments(parameter, m, v, rates)
    backend = dispatch.choose("adam", parameter.device)
    if backend == "cpu":
        from raymine.kernels.adam import cpu

        with dispatch.kernel_lock:
            cpu.update(parameter.detach(), grad.contiguous(), m, v, rates, sparse)
    elif backend == "gpu" and parameter.dtype == torch.float32:
        from raymine.kernels.adam import gpu

        gpu.update(parameter.detach(), grad.contiguous(), m, v, rates, sparse)
    else:
        reference.update(parameter.detach(), grad, m, v, rates, sparse)


def update_rows(parameter: Tensor, rows: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates) -> None:
    """Apply one step to some rows of `parameter` [n, F] and of its moments m, v [n, F], in place. Not differentiable.

    rows [k] int64: each row at most once. grad [k, F]: the gradient of these rows. Elements whose gradient is exactly 0
    are skipped. The result equals `update` with sparse=True, without decay, and a gradient [n, F] that is 0 elsewhere.
    """
    wanted = (rows.shape[0], *parameter.shape[1:])
    if parameter.ndim != 2 or tuple(grad.shape) != wanted:
        raise ConfigError(f"`grad` must have shape {list(wanted)} for these rows, got {list(grad.shape)}.")
    _require_moments(parameter, m, v, rates)
    if dispatch.choose("adam", parameter.device) == "cpu":
        from raymine.kernels.adam import cpu

        with dispatch.kernel_lock:
            cpu.update_rows(parameter.detach(), rows.contiguous(), grad.contiguous(), m, v, rates)
    else:
        # On CUDA nearly all the time goes into gathering and scattering the rows, so a kernel gains nothing (0.97x).
        reference.update_rows(parameter.detach(), rows, grad, m, v, rates)


def _require_moments(parameter: Tensor, m: Tensor | None, v: Tensor, rates: Rates) -> None:
    if (m is None) != (rates.beta1 == 0):
        raise ConfigError(f"`m` must be None just where beta1 is 0; beta1 is {rates.beta1}.")
    for name, value in (("parameter", parameter), ("m", m), ("v", v)):
        if value is not None and not value.is_contiguous():
            raise ConfigError(f"`{name}` must be contiguous, since it is updated in place.")
