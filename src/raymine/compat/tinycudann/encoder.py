"""The base class of encodings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Encoder:
    """An encoding without its parameters; the caller passes them as a flat tensor.

    alignment: in a composite, the encoding before this one is padded so that this one starts at a column that is a
    multiple of it. fill: value of padding. fill_first: whether padding comes before the encoding.
    """

    n_input_dims: int
    n_output_dims: int
    n_params: int = 0
    alignment: int = 1
    fill: float = 1.0
    fill_first: bool = False

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None) -> Tensor:
        """x [n, n_input_dims], params [n_params] -> [n, n_output_dims]. Differentiable in both.

        half: round parameters to half precision. loss_scale: None if the result may be in half precision. A number asks
        for a float32 result; half-precision gradients are then multiplied by it inside, to avoid underflow.
        """
        raise NotImplementedError

    def padded(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None, width: int) -> Tensor:
        """As `__call__`, but padded to [n, width]."""
        out = self(x, params, half, loss_scale)
        if width == out.shape[1]:
            return out
        padding = out.new_full((out.shape[0], width - out.shape[1]), self.fill)
        return torch.cat([padding, out] if self.fill_first else [out, padding], 1)

    def bounds(self) -> list[tuple[int, float]]:
        """Initialisation: (number of parameters, bound) in order; these parameters are uniform in -bound..bound."""
        return []

    def hyperparams(self) -> dict[str, Any]:
        """A dictionary with all options of this encoding."""
        raise NotImplementedError
