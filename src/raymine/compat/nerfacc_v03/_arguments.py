"""Checks of arguments that the functions of nerfacc 0.2 and 0.3 share."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from raymine.compat.nerfacc.pack import _pack_of
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.pack import Pack


def floating(name: str, value: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """A floating-point tensor of that shape, on the device of `like`."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise ConfigError(f"`{name}` must be a floating-point tensor, got {_kind(value)}.")
    checks.shapes(((name, value, tuple(shape)),), like.device)
    return value


def columns(**named: Tensor) -> list[Tensor]:
    """Floating-point tensors [n, 1] of one length as [n], in the order of the arguments."""
    first = next(iter(named.values()))
    n = first.shape[0] if isinstance(first, Tensor) and first.ndim else 0
    return [floating(name, value, (n, 1), first)[:, 0] for name, value in named.items()]


def whole(name: str, number: int, least: int = 0) -> int:
    """A whole number of at least `least`."""
    try:
        found = operator.index(number)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"`{name}` must be a whole number, got {_kind(number)}.") from None
    if not least <= found < 2**31:
        raise ConfigError(f"`{name}` must be in {least} .. 2^31 - 1, got {found}.")
    return found


def indices(ray_indices: Tensor, samples: int, like: Tensor) -> Tensor:
    """ray_indices [B] as int64."""
    if not isinstance(ray_indices, Tensor):
        raise ConfigError(f"`ray_indices` must be a tensor, got {_kind(ray_indices)}.")
    return checks.integers("ray_indices", ray_indices, like.device, samples)


def check_range(ray_indices: Tensor, n_rays: int) -> None:
    """ray_indices are in 0 .. n_rays - 1, where values are checked."""
    if checks.readable(ray_indices) and len(ray_indices):
        low, high = (int(part) for part in torch.aminmax(ray_indices))
        if low < 0 or high >= n_rays:
            raise ConfigError(f"`ray_indices` must be in 0 .. {n_rays - 1}, got {low} .. {high}. Check `n_rays`.")


def packed(packed_info: Tensor, like: Tensor | None = None) -> Pack:
    """The pack that packed_info [R, 2] describes: first sample and number of samples of each ray."""
    if not isinstance(packed_info, Tensor) or packed_info.ndim != 2 or packed_info.shape[1] != 2:
        shape = list(packed_info.shape) if isinstance(packed_info, Tensor) else _kind(packed_info)
        raise ConfigError(f"`packed_info` must be a tensor of shape [R, 2], got {shape}.")
    device = packed_info.device if like is None else like.device
    first, count = (checks.integers("packed_info", part, device) for part in packed_info.unbind(-1))
    return Pack(first, count)


def pack_for(
    samples: Tensor, packed_info: Tensor | None, ray_indices: Tensor | None, n_rays: int | None = None
) -> Pack:
    """The pack of `samples` [B]. If both descriptions are given, `packed_info` is used."""
    if ray_indices is not None:
        ray_indices = indices(ray_indices, len(samples), samples)
    if packed_info is not None:
        return packed(packed_info, samples)
    if ray_indices is None:
        raise ConfigError("Pass `ray_indices` or `packed_info`, which say which ray each sample belongs to.")
    pack = _pack_of(None, ray_indices, None if n_rays is None else whole("n_rays", n_rays))
    assert pack is not None, "there are indices"
    return pack


def returned(name: str, value: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """What a callback has returned, which must be floating point of that shape, on the device of `like`."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise ConfigError(f"`{name}` must return floating-point tensors, got {_kind(value)}.")
    if tuple(value.shape) != tuple(shape):
        raise ConfigError(f"`{name}` must return a tensor of shape {list(shape)}, got {list(value.shape)}.")
    if value.device != like.device:
        raise ConfigError(f"`{name}` must return tensors on {like.device}, got {value.device}.")
    return value


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
