"""The Adam update: checks and dispatch. In place; the caller owns the moments."""

from __future__ import annotations

from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.adam import reference
from raymine.kernels.adam.reference import Rates as Rates


def update(parameter: Tensor, grad: Tensor, m: Tensor, v: Tensor, rates: Rates, *, sparse: bool = False) -> None:
    """One step on `parameter` and its moments, in place; all four have one shape and are contiguous.

    With `sparse`, elements whose gradient is exactly 0 are skipped.
    """
    for name, value in (("grad", grad), ("m", m), ("v", v)):
        if value.shape != parameter.shape:
            raise ConfigError(
                f"`{name}` must have the parameter's shape {list(parameter.shape)}, got {list(value.shape)}."
            )
    for name, value in (("parameter", parameter), ("m", m), ("v", v)):
        if not value.is_contiguous():
            raise ConfigError(f"`{name}` must be contiguous, since it is updated in place.")
    if dispatch.choose("adam", parameter.device) == "cpu":
        from raymine.kernels.adam import cpu

        with dispatch.kernel_lock:
            cpu.update(parameter, grad.contiguous(), m, v, rates, sparse)
    else:
        reference.update(parameter.detach(), grad, m, v, rates, sparse)
