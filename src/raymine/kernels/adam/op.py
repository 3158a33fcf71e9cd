"""The Adam update: checks and dispatch. In place; the caller owns the moments."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.adam import reference
from raymine.kernels.adam.reference import Rates as Rates


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, *, sparse: bool = False) -> None:
    """One step on `parameter` and its moments, in place; all four have one shape and are contiguous.

    m: None if and only if beta1 is 0. With `sparse`, elements whose gradient is exactly 0 are skipped.
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
    """One step on the `rows` [k] (each at most once) of `parameter` [n, F] and its moments, in place; grad: [k, F].

    Elements whose gradient is exactly 0 are skipped, so this equals `update` with `sparse` and a dense gradient.
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
        # On CUDA gathering and scattering the rows is all the cost: a kernel between them gains nothing (0.97x).
        reference.update_rows(parameter.detach(), rows, grad, m, v, rates)


def _require_moments(parameter: Tensor, m: Tensor | None, v: Tensor, rates: Rates) -> None:
    if (m is None) != (rates.beta1 == 0):
        raise ConfigError(f"`m` must be None just where beta1 is 0; beta1 is {rates.beta1}.")
    for name, value in (("parameter", parameter), ("m", m), ("v", v)):
        if value is not None and not value.is_contiguous():
            raise ConfigError(f"`{name}` must be contiguous, since it is updated in place.")
