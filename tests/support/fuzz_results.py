"""Results of fuzzed calls: their parts, how two of them differ, and memory that shows writes outside of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def leaves(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    """Tensors and plain values in a result, with their places in it. Objects of other classes count by their class."""
    if value is None or isinstance(value, (Tensor, int, float, str)):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, f"{path}[{key!r}]")
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, each in zip(value._fields, value, strict=True):
            yield from leaves(each, f"{path}.{name}")
    elif isinstance(value, Sequence):
        for i, each in enumerate(value):
            yield from leaves(each, f"{path}[{i}]")
    elif is_dataclass(value):
        for one in fields(value):
            yield from leaves(getattr(value, one.name), f"{path}.{one.name}")
    else:
        yield path, type(value).__name__


def difference(found: Any, expected: Any, close: float) -> str:
    """How a result differs from the expected one, or "". Where one is not finite, the other must not be either.

    close: as in `fuzz.Case`. If it is infinite, shapes, types and devices are compared, but no values: with NaN or
    infinity in the arguments, how far they spread within a ray depends on the order of operations.
    """
    ours, theirs = list(leaves(found)), list(leaves(expected))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return f"the result has the parts {[p for p, _ in ours]} instead of {[p for p, _ in theirs]}"
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            same = a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= close * max(1, abs(b)))
            both_nan = isinstance(a, float) and isinstance(b, float) and a != a and b != b
            if not (same or both_nan):
                return f"{path} is {a!r} instead of {b!r}"
            continue
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return f"{path} is {a.dtype} {list(a.shape)} on {a.device}, not {b.dtype} {list(b.shape)} on {b.device}"
        if a.device.type == "meta" or not a.numel() or close == float("inf"):
            continue
        if not a.is_floating_point() and not a.is_complex():
            if not torch.equal(a, b):
                return f"{path} differs: {a.flatten()[:6].tolist()} instead of {b.flatten()[:6].tolist()}"
            continue
        x, y = a.detach().to(torch.complex128), b.detach().to(torch.complex128)
        finite = x.isfinite() & y.isfinite()
        if not torch.equal(x.isfinite(), y.isfinite()):
            return f"{path} is finite in other places than the expected result"
        most = float(y[finite].abs().max()) if bool(finite.any()) else 0.0
        apart = float((x - y)[finite].abs().max()) if bool(finite.any()) else 0.0
        if apart > close * max(1.0, most):
            return f"{path} differs by {apart:.3g}, largest value {most:.3g}"
    return ""


@dataclass
class Guards:
    """Tensors with a known pattern on both sides. `touched` finds writes outside of them, or into constant ones."""

    zones: list[tuple[str, Tensor, int, int]] = field(default_factory=list)
    constants: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)

    MARGIN = 64

    def placed(self, name: str, tensor: Tensor, constant: bool) -> Tensor:
        """The tensor, contiguous or not as it was, in the middle of a larger buffer if it is contiguous."""
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            size = tensor.element_size() * tensor.numel()
            buffer = torch.full((size + 2 * self.MARGIN,), 0xA5, dtype=torch.uint8)
            inner = buffer[self.MARGIN : self.MARGIN + size].view(tensor.dtype).view(tensor.shape)
            tensor = inner.copy_(tensor)
            self.zones.append((name, buffer, self.MARGIN, size))
        if constant and tensor.device.type == "cpu":
            self.constants.append((name, tensor, tensor.clone()))
        return tensor

    def touched(self) -> str:
        """The name of a tensor next to which, or into which, something was written, or ""."""
        for name, buffer, margin, size in self.zones:
            if not bool((buffer[:margin] == 0xA5).all() and (buffer[margin + size :] == 0xA5).all()):
                return f"memory next to `{name}` was written"
        for name, tensor, before in self.constants:
            if not torch.equal(tensor.detach().contiguous().view(-1).view(torch.uint8), _bytes(before)):
                return f"`{name}` was changed"
        return ""


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
