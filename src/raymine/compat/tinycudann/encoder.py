"""What every encoding is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Encoder:
    """An encoding without its parameters: they are handed in, flat.

    alignment: the width of an encoding that is followed by this one is padded so that this one begins at a multiple.
    fill, fill_first: what padding holds, and whether it lies before the encoding.
    """

    n_input_dims: int
    n_output_dims: int
    n_params: int = 0
    alignment: int = 1
    fill: float = 1.0
    fill_first: bool = False

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None) -> Tensor:
        """x [n, n_input_dims], params [n_params] -> [n, n_output_dims]; differentiable in both.

        half: read parameters in half precision. loss_scale: None where a half-precision result is welcome; a number
        where float32 is wanted, and half-precision gradients on the way are to be multiplied by it in between.
        """
        raise NotImplementedError

    def padded(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None, width: int) -> Tensor:
        """As calling it, but [n, width]."""
        out = self(x, params, half, loss_scale)
        if width == out.shape[1]:
            return out
        padding = out.new_full((out.shape[0], width - out.shape[1]), self.fill)
        return torch.cat([padding, out] if self.fill_first else [out, padding], 1)

    def bounds(self) -> list[tuple[int, float]]:
        """How many parameters begin uniform within which bound, in order."""
        return []

    def hyperparams(self) -> dict[str, Any]:
        """A complete dictionary that describes this encoding."""
        raise NotImplementedError
