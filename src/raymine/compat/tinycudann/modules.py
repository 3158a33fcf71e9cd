"""The modules of tiny-cuda-nn's PyTorch API: `Encoding`, `Network` and `NetworkWithInputEncoding`."""

from __future__ import annotations

import gc
import math
import operator
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raymine.compat.tinycudann import encodings, networks
from raymine.compat.tinycudann.encoder import Encoder
from raymine.compat.tinycudann.networks import Perceptron
from raymine.compat.tinycudann.precision import KINDS, usual_dtype
from raymine.errors import ConfigError
from raymine.kernels.philox.op import Stream, uniform


def free_temporary_memory() -> None:
    """Release the GPU memory that torch has cached but does not use."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def supports_jit_fusion(device: int = 0) -> bool:
    """Always False: `Module.jit_fusion` has no effect here."""
    return False


class Native:
    """The function of a module without its parameters: an encoding, optionally followed by a network.

    The parameters are one flat tensor: those of the network, then those of the encoding.
    """

    def __init__(self, encoder: Encoder, network: Perceptron | None) -> None:
        self.encoder, self.network = encoder, network

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float) -> Tensor:
        """x [n, inputs], params [n_params] -> [n, outputs without padding]. Differentiable in both."""
        if self.network is None:
            return self.encoder(x, params, half, None)
        own, rest = params.split([self.network.n_params, self.encoder.n_params])
        encoded = self.encoder.padded(x, rest, half, loss_scale, self.network.n_input_dims)
        return self.network(encoded, own, half, loss_scale)

    def n_input_dims(self) -> int:
        return self.encoder.n_input_dims

    def n_output_dims(self) -> int:
        """Width of the outputs, padding included."""
        return self.encoder.n_output_dims if self.network is None else self.network.padded_output_dims

    def n_params(self) -> int:
        return self.encoder.n_params + (0 if self.network is None else self.network.n_params)

    def name(self) -> str:
        return str(self.hyperparams()["otype"])

    def hyperparams(self) -> dict[str, Any]:
        """All options with their values."""
        if self.network is None:
            return self.encoder.hyperparams()
        return {
            "otype": "NetworkWithInputEncoding",
            "encoding": self.encoder.hyperparams(),
            "network": self.network.hyperparams(),
        }

    def initial_params(self, seed: int, device: torch.device | str = "cpu") -> Tensor:
        """Initial parameters [n_params] float32. The same seed gives the same values on every device."""
        params = uniform(seed, 0, Stream.INITIAL, (self.n_params(),), device) - 0.5
        bounds = (self.network.bounds() if self.network else []) + self.encoder.bounds()
        for part, (_, bound) in zip(params.split([n for n, _ in bounds]), bounds, strict=True):
            part *= 2 * bound
        return params


class Module(torch.nn.Module):
    """A function of inputs [n, n_input_dims] with one flat parameter, `params`.

    params: [n_params] float32. First the matrices of the network, if there is one, each [outputs, inputs] row by row;
        the inputs of the first and the outputs of the last are padded to a multiple of 16. Then the tables of the
        grids, level by level.
    jit_fusion: has no effect.
    """

    n_input_dims: int
    n_output_dims: int
    params: torch.nn.Parameter

    def __init__(self, seed: int = 1337) -> None:
        super().__init__()
        self.native_tcnn_module = self._native_tcnn_module()
        self.seed = operator.index(seed)
        self.jit_fusion = False
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.params = torch.nn.Parameter(self.native_tcnn_module.initial_params(self.seed, device))
        self._loss_scale: float | None = None

    def _native_tcnn_module(self) -> Native:
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The type of outputs: the `dtype` of an `Encoding` if given; else float16 on a GPU and float32 on a CPU.

        `set_cpu_dtype` changes the type on a CPU.
        """
        asked: torch.dtype | None = self.__dict__.get("_dtype")
        return usual_dtype(self.params.device) if asked is None else asked

    @property
    def loss_scale(self) -> float:
        """Factor of gradients inside the module while they are in half precision. It can be set.

        The default is 128 for float16 and 1 for float32. Gradients are divided by it before they leave the module.
        """
        if self._loss_scale is not None:
            return self._loss_scale
        return 128.0 if self.dtype == torch.float16 else 1.0

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        if not 0 < value < math.inf:
            raise ConfigError(f"`loss_scale` must be above 0 and finite, got {value!r}.")
        self._loss_scale = float(value)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, n_input_dims] of any type -> [n, n_output_dims] in `dtype`. Differentiable in x and `params`.

        x is converted to float32. n may be 0.
        """
        if x.ndim != 2 or x.shape[1] != self.n_input_dims:
            raise ConfigError(f"Inputs must have shape [n, {self.n_input_dims}], got {list(x.shape)}.")
        if x.is_complex():
            raise ConfigError(f"Inputs must be real numbers, got {x.dtype}.")
        if x.device != self.params.device:
            if x.device.type != "cpu":
                raise ConfigError(
                    f"Inputs are on {x.device} but the parameters on {self.params.device}. Move one of them with `.to`."
                )
            warnings.warn(f"Inputs are on the CPU and are moved to {self.params.device} at every call.", stacklevel=2)
            x = x.to(self.params.device)
        half = self.dtype == torch.float16
        out = self.native_tcnn_module(x.float(), self.params.float(), half, self.loss_scale)
        return out.to(self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # It is rebuilt from the dictionaries that describe the module, so that old pickles load in later versions.
        del state["native_tcnn_module"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.native_tcnn_module = self._native_tcnn_module()

    def extra_repr(self) -> str:
        return (
            f"n_input_dims={self.n_input_dims}, n_output_dims={self.n_output_dims}, seed={self.seed}, "
            f"dtype={self.dtype}, hyperparams={self.native_tcnn_module.hyperparams()}"
        )


def _width(name: str, value: int) -> int:
    """`value` as an int; ConfigError unless it is a whole number above 0."""
    width = -1 if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
    if width < 1:
        raise ConfigError(f"`{name}` must be a whole number above 0, got {value!r}.")
    return width


class NetworkWithInputEncoding(Module):
    """An encoding followed by a network: [n, n_input_dims] -> [n, n_output_dims]."""

    def __init__(
        self,
        n_input_dims: int,
        n_output_dims: int,
        encoding_config: Mapping[str, Any],
        network_config: Mapping[str, Any],
        seed: int = 1337,
    ) -> None:
        self.n_input_dims = _width("n_input_dims", n_input_dims)
        self.n_output_dims = _width("n_output_dims", n_output_dims)
        self.encoding_config, self.network_config = encoding_config, network_config
        super().__init__(seed=seed)

    def _native_tcnn_module(self) -> Native:
        encoder = encodings.build(self.n_input_dims, self.encoding_config)
        return Native(encoder, networks.build(encoder.n_output_dims, self.n_output_dims, self.network_config))


class Network(Module):
    """A network: [n, n_input_dims] -> [n, n_output_dims]. Inputs are padded with ones to a multiple of 16."""

    def __init__(
        self, n_input_dims: int, n_output_dims: int, network_config: Mapping[str, Any], seed: int = 1337
    ) -> None:
        self.n_input_dims = _width("n_input_dims", n_input_dims)
        self.n_output_dims = _width("n_output_dims", n_output_dims)
        self.network_config = network_config
        super().__init__(seed=seed)

    def _native_tcnn_module(self) -> Native:
        encoder = encodings.build(self.n_input_dims, {"otype": "Identity"})
        return Native(encoder, networks.build(self.n_input_dims, self.n_output_dims, self.network_config))


class Encoding(Module):
    """An encoding: [n, n_input_dims] -> [n, n_output_dims] in `dtype`. Its dictionary determines n_output_dims."""

    def __init__(
        self,
        n_input_dims: int,
        encoding_config: Mapping[str, Any],
        seed: int = 1337,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dtype is not None and dtype not in KINDS:
            raise ConfigError(f"`dtype` of an encoding must be torch.float32, torch.float16 or None, got {dtype}.")
        self.n_input_dims = _width("n_input_dims", n_input_dims)
        self.encoding_config, self._dtype = encoding_config, dtype
        super().__init__(seed=seed)
        self.n_output_dims = self.native_tcnn_module.n_output_dims()

    def _native_tcnn_module(self) -> Native:
        return Native(encodings.build(self.n_input_dims, self.encoding_config), None)
