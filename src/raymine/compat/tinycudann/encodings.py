"""Encodings without parameters, composite encodings, and `build`, which makes an encoding from its dictionary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from raymine.compat.tinycudann.encoder import Encoder
from raymine.compat.tinycudann.grids import GridEncoder
from raymine.compat.tinycudann.options import Options, next_multiple
from raymine.errors import ConfigError
from raymine.kernels.harmonics.op import MOST_DEGREE, harmonics

REDUCTIONS = ("Concatenation", "Sum", "Product")


class _Formula(Encoder):
    """An encoding without parameters."""

    def __init__(self, n_input_dims: int, n_output_dims: int, settings: dict[str, Any]) -> None:
        self.n_input_dims, self.n_output_dims, self._settings = n_input_dims, n_output_dims, settings

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None) -> Tensor:
        return self.formula(x)

    def formula(self, x: Tensor) -> Tensor:
        """x [n, n_input_dims] -> [n, n_output_dims]. Differentiable."""
        raise NotImplementedError

    def hyperparams(self) -> dict[str, Any]:
        return dict(self._settings)


class IdentityEncoder(_Formula):
    """x * scale + offset."""

    def __init__(self, n_input_dims: int, options: Options) -> None:
        self.scale, self.offset = options.number("scale", 1.0), options.number("offset", 0.0)
        super().__init__(n_input_dims, n_input_dims, {"otype": "Identity", "scale": self.scale, "offset": self.offset})

    def formula(self, x: Tensor) -> Tensor:
        return x * self.scale + self.offset


class EmptyEncoder(_Formula):
    """An encoding of width 0: it ignores its inputs."""

    def __init__(self, n_input_dims: int, options: Options) -> None:
        super().__init__(n_input_dims, 0, {"otype": "Empty"})

    def formula(self, x: Tensor) -> Tensor:
        return x[:, :0]


class FrequencyEncoder(_Formula):
    """For each input x: sin(pi x), cos(pi x), sin(2 pi x), cos(2 pi x), sin(4 pi x), ..."""

    def __init__(self, n_input_dims: int, options: Options) -> None:
        self.n = options.whole("n_frequencies", 12, high=64)
        super().__init__(n_input_dims, n_input_dims * self.n * 2, {"otype": "Frequency", "n_frequencies": self.n})

    def formula(self, x: Tensor) -> Tensor:
        angle = x[:, :, None] * _powers_of_two(self.n, x) * math.pi
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


class TriangleWaveEncoder(_Formula):
    """For each input x and k = 0 .. n - 1: 4 |v - floor(v) - 1/2| - 1 with v = 2^(k - 1) x + k / 4."""

    def __init__(self, n_input_dims: int, options: Options) -> None:
        self.n = options.whole("n_frequencies", 12, high=64)
        super().__init__(n_input_dims, n_input_dims * self.n, {"otype": "TriangleWave", "n_frequencies": self.n})

    def formula(self, x: Tensor) -> Tensor:
        shift = torch.arange(self.n, device=x.device, dtype=x.dtype) * 0.25
        at = x[:, :, None] * (_powers_of_two(self.n, x) * 0.5) + shift
        return ((at - at.detach().floor() - 0.5).abs() * 4 - 1).flatten(1)


class OneBlobEncoder(_Formula):
    """For each input in 0..1, the integral of a kernel around it over each of n bins; 0..1 is treated as periodic.

    The kernel is 15/16 (1 - u^2)^2 with u = n * distance, and 0 for |u| > 1.
    """

    def __init__(self, n_input_dims: int, options: Options) -> None:
        self.n = options.whole("n_bins", 16, high=1 << 16)
        if self.n & (self.n - 1):
            raise ConfigError(f"`n_bins` of {options.otype} must be a power of two, got {self.n}.")
        super().__init__(n_input_dims, n_input_dims * self.n, {"otype": "OneBlob", "n_bins": self.n})

    def formula(self, x: Tensor) -> Tensor:
        edge = torch.arange(self.n + 1, device=x.device, dtype=x.dtype) / self.n
        away = edge - x[:, :, None]
        below = sum(_blob_below(away + turn, self.n) for turn in (0.0, -1.0, 1.0))
        assert isinstance(below, Tensor)
        return (below[..., 1:] - below[..., :-1]).flatten(1)


class SphericalHarmonicsEncoder(_Formula):
    """Real spherical harmonics of the direction 2 x - 1, bands 0 .. degree - 1. Padding comes before them."""

    fill_first = True

    def __init__(self, n_input_dims: int, options: Options) -> None:
        if n_input_dims != 3:
            raise ConfigError(f"SphericalHarmonics encodes 3 dimensions, got `n_input_dims` = {n_input_dims}.")
        self.degree = options.whole("degree", 4, high=MOST_DEGREE)
        super().__init__(3, self.degree**2, {"otype": "SphericalHarmonics", "degree": self.degree})

    def formula(self, x: Tensor) -> Tensor:
        return harmonics(x * 2 - 1, self.degree)


class CompositeEncoder(Encoder):
    """Encodings of ranges of the input dimensions, concatenated, summed or multiplied.

    Its parameters are those of the nested encodings, one after another.
    """

    def __init__(self, n_input_dims: int, options: Options) -> None:
        nested = options.value("nested")
        if not isinstance(nested, Sequence) or isinstance(nested, str):
            raise ConfigError(f"`nested` of {options.otype} must be a list of encodings, got {nested!r}.")
        self.reduction = options.choice("reduction", "Concatenation", REDUCTIONS)
        ranges = _ranges(nested, n_input_dims)
        self._parts = [(begin, build(n, config)) for (begin, n), config in zip(ranges, nested, strict=True) if n > 0]
        if not self._parts:
            raise ConfigError(f"`nested` of {options.otype} must hold an encoding of at least one dimension.")
        parts = [part for _, part in self._parts]
        self.alignment = math.lcm(*(part.alignment for part in parts))
        self._widths = [next_multiple(part.n_output_dims, self.alignment) for part in parts]
        if self.reduction != "Concatenation":
            if len(set(self._widths)) > 1:
                raise ConfigError(f"`reduction` {self.reduction} needs nested encodings of one width: {self._widths}.")
            self.n_output_dims = self._widths[0]
        else:
            so_far, self._widths = 0, []
            for part, after in zip(parts, [*parts[1:], None], strict=True):
                end = next_multiple(so_far + part.n_output_dims, after.alignment if after else 1)
                self._widths.append(end - so_far)
                so_far = end
            self.n_output_dims = so_far
        self.n_input_dims, self.n_params = n_input_dims, sum(part.n_params for part in parts)

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None) -> Tensor:
        return self.padded(x, params, half, loss_scale, self.n_output_dims)

    def padded(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None, width: int) -> Tensor:
        if self.reduction == "Concatenation":
            widths = [*self._widths[:-1], self._widths[-1] + width - self.n_output_dims]
        else:
            widths = [width for _ in self._widths]
        outs, pieces = [], params.split([part.n_params for _, part in self._parts])
        for (begin, part), own, wide in zip(self._parts, pieces, widths, strict=True):
            outs.append(part.padded(x[:, begin : begin + part.n_input_dims], own, half, loss_scale, wide))
        if self.reduction == "Concatenation":
            return torch.cat(outs, 1)
        return reduce(torch.add if self.reduction == "Sum" else torch.mul, outs)

    def bounds(self) -> list[tuple[int, float]]:
        return [bound for _, part in self._parts for bound in part.bounds()]

    def hyperparams(self) -> dict[str, Any]:
        nested = [
            {"dims_to_encode_begin": begin, "n_dims_to_encode": part.n_input_dims, **part.hyperparams()}
            for begin, part in self._parts
        ]
        return {"otype": "Composite", "reduction": self.reduction, "nested": nested}


def _ranges(nested: Sequence[Any], n_input_dims: int) -> list[tuple[int, int]]:
    """(first dimension, number of dimensions) of each nested encoding. One without a number gets the remaining ones."""
    options = [Options(config, "A nested encoding", "OneBlob") for config in nested]
    free = any("dims_to_encode_begin" in one for one in options)
    named = [one.whole("n_dims_to_encode", 0, low=0) if "n_dims_to_encode" in one else None for one in options]
    rest = n_input_dims - sum(n or 0 for n in named)
    if None in named and (free or named.count(None) > 1):
        raise ConfigError("`n_dims_to_encode` may be left out of one nested encoding, and only without "
                          "`dims_to_encode_begin` in any of them.")  # fmt: skip
    if rest < 0 and not free:
        raise ConfigError(f"`n_dims_to_encode` of the nested encodings adds up to more than {n_input_dims}.")
    found, begin = [], 0
    for one, n in zip(options, named, strict=True):
        begin = one.whole("dims_to_encode_begin", begin, low=0)
        n = rest if n is None else n
        if begin + n > n_input_dims:
            raise ConfigError(f"`nested` asks for dimensions {begin} .. {begin + n - 1}, but there are {n_input_dims}.")
        found.append((begin, n))
        begin += n
    return found


def _powers_of_two(n: int, like: Tensor) -> Tensor:
    return torch.exp2(torch.arange(n, device=like.device, dtype=torch.float64)).to(like.dtype)


def _blob_below(away: Tensor, n: int) -> Tensor:
    """Integral of the kernel from minus infinity to the offset `away` from its centre, in 0..1."""
    u = (away * n).clamp(-1.0, 1.0)
    return 15 / 16 * u * (1 - 2 / 3 * u**2 + 1 / 5 * u**4) + 0.5


def _radiance_cache(n_input_dims: int, options: Options) -> Encoder:
    nested = [
        {"n_dims_to_encode": 3, "otype": "TriangleWave", "n_frequencies": options.value("n_frequencies", 12)},
        {"n_dims_to_encode": 5, "otype": "OneBlob", "n_bins": options.value("n_bins", 4)},
        {"otype": "Identity"},
    ]
    return build(n_input_dims, {"otype": "Composite", "nested": nested})


KINDS: dict[str, Callable[[int, Options], Encoder]] = {
    "Composite": CompositeEncoder,
    "Empty": EmptyEncoder,
    "Frequency": FrequencyEncoder,
    "Grid": GridEncoder,
    "HashGrid": GridEncoder,
    "TiledGrid": GridEncoder,
    "DenseGrid": GridEncoder,
    "Identity": IdentityEncoder,
    "OneBlob": OneBlobEncoder,
    "SphericalHarmonics": SphericalHarmonicsEncoder,
    "TriangleWave": TriangleWaveEncoder,
    "OneBlobFrequency": _radiance_cache,
    "NRC": _radiance_cache,
}


def build(n_input_dims: int, config: object) -> Encoder:
    """The encoding that a dictionary describes. Without `otype`, it is OneBlob."""
    options = Options(config, "An encoding", "OneBlob")
    make = {name.lower(): kind for name, kind in KINDS.items()}.get(options.otype.lower())
    if make is None:
        raise ConfigError(f"There is no encoding with the `otype` {options.otype!r}. There are: {', '.join(KINDS)}.")
    encoder = make(n_input_dims, options)
    # `CompositeEncoder` reads these two options; mark them as read, so that `finish` does not warn.
    options.value("n_dims_to_encode")
    options.value("dims_to_encode_begin")
    options.finish()
    return encoder
