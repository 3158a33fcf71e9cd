"""The perceptron in Triton: a tile of samples through all layers, and back, in one kernel.

Activations stay in registers and the forward stores none: the backward goes forward again, since reading the inputs
and multiplying costs less than reading activations. Layers lie one after the other in one array of the products' type,
each padded with zeros to powers of two, so that hidden layers may differ in width: [IP, HP], [HP, HP] ..., [HP, OP].

A program works on many tiles. It keeps the weights meanwhile, up to `ROOM`, and in the backward the gradients of all
layers, up to `SUMS`; every program's own part is then added up in a fixed order. Beyond `SUMS` the backward writes the
activations and gradients of every sample to memory, and a kernel (`outer`) makes the gradients, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from raymine.kernels._triton import power_of_two, programs
from raymine.kernels.mlp import gpu_backward as kernels
from raymine.kernels.mlp.gpu_blocks import activate, block, put_rows, rows, times

ROOM = 48 * 1024
"""Bytes of padded weights that a program keeps over its tiles."""

SUMS = 12 * 1024
"""Numbers of padded weights whose float32 gradients a program keeps over its tiles: 96 registers of each thread."""

_KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Network(NamedTuple):
    """widths: inputs, of each layer its outputs; padded: the same as powers of two, hidden layers all alike.

    turned: layers lie in memory as [outputs, inputs].
    """

    widths: tuple[int, ...]
    padded: tuple[int, ...]
    hidden: str
    output: str
    kind: torch.dtype
    turned: bool = False

    @property
    def sizes(self) -> list[int]:
        """Numbers in each padded layer."""
        return [a * b for a, b in zip(self.padded, self.padded[1:], strict=False)]

    @property
    def held(self) -> bool:
        """Whether a program keeps all weights; otherwise it reads them again for every tile."""
        return sum(self.sizes) * self.kind.itemsize <= ROOM

    @property
    def summed(self) -> bool:
        """Whether a program of the backward keeps the gradients of all weights; otherwise `outer` makes them."""
        return sum(self.sizes) <= SUMS

    @property
    def tile(self) -> int:
        """Samples at a time. Float32 products have no tensor cores and keep operands in registers: 32 samples spill."""
        return 16 if self.kind == torch.float32 else 64

    @property
    def warps(self) -> int:
        """Of a program. On tensor cores 8 warps do a product of 64 rows twice; but with 4, where weights are read again
        for every tile, ptxas 12.8 finds shared memory on a Hopper by registers that nothing has set."""
        return 4 if self.kind != torch.float32 and self.held else 8

    @property
    def scale(self) -> float:
        """Of gradients inside the kernels, so that small ones survive in float16; a power of two, so it is exact."""
        return 128.0 if self.kind == torch.float16 else 1.0

    @property
    def pitch(self) -> int:
        """Numbers that the backward keeps of a sample where gradients are not summed in registers."""
        return 2 * (len(self.padded) - 2) * self.padded[1] + self.padded[-1]

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernels are compiled for."""
        layers, padded = len(self.widths) - 1, self.padded
        return {
            "LAYERS": layers, "I": self.widths[0], "O": self.widths[-1], "IP": padded[0], "HP": padded[1],
            "LP": padded[-2], "OP": padded[-1], "LAST": sum(self.sizes[:-1]), "HIDDEN": self.hidden,
            "OUTPUT": self.output, "HELD": self.held, "TURNED": self.turned, "TILE": self.tile,
            # What is loaded ahead takes shared memory, of which many devices have 99 KB: narrow inputs, and no weights.
            "num_warps": self.warps, "num_stages": 2 if self.held and padded[0] <= 64 else 1,
        }  # fmt: skip


def network_of(widths: tuple[int, ...], hidden: str, output: str, precision: str, turned: bool = False) -> Network:
    """The constants of a network; `op` has checked its shapes."""
    wide = power_of_two(max(widths[1:-1], default=0), 16)
    padded = (power_of_two(widths[0], 16), *(wide for _ in widths[1:-1]), power_of_two(widths[-1], 16))
    return Network(widths, padded, hidden, output, _KINDS[precision], turned)


@triton.jit(do_not_specialize=["n"])
def _forward(
    inputs, weights, out, n,
    LAYERS: tl.constexpr, I: tl.constexpr, O: tl.constexpr, IP: tl.constexpr, HP: tl.constexpr, LP: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, HIDDEN: tl.constexpr, OUTPUT: tl.constexpr, HELD: tl.constexpr,
    TURNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out [n, O]."""
    kind = weights.dtype.element_ty
    middle = weights + IP * HP
    if HELD:
        last = block(weights + LAST, LP, OP, TURNED)
        if LAYERS > 1:
            w0 = block(weights, IP, HP, TURNED)
        if LAYERS > 2:
            w1 = block(middle, HP, HP, TURNED)
        if LAYERS > 3:
            w2 = block(middle + HP * HP, HP, HP, TURNED)
        if LAYERS > 4:
            w3 = block(middle + 2 * HP * HP, HP, HP, TURNED)
        if LAYERS > 5:
            w4 = block(middle + 3 * HP * HP, HP, HP, TURNED)
    for tile in range(tl.program_id(0), tl.cdiv(n, TILE), tl.num_programs(0)):
        i = tile * TILE + tl.arange(0, TILE)
        # Behind the end the last sample is repeated: zeros might overflow where the samples do not.
        h = rows(inputs, tl.minimum(i, n - 1), i >= 0, I, IP, I).to(kind)
        if LAYERS > 1:
            h = activate(times(h, w0 if HELD else block(weights, IP, HP, TURNED)), HIDDEN).to(kind)
        if LAYERS > 2:
            h = activate(times(h, w1 if HELD else block(middle, HP, HP, TURNED)), HIDDEN).to(kind)
        if LAYERS > 3:
            h = activate(times(h, w2 if HELD else block(middle + HP * HP, HP, HP, TURNED)), HIDDEN).to(kind)
        if LAYERS > 4:
            h = activate(times(h, w3 if HELD else block(middle + 2 * HP * HP, HP, HP, TURNED)), HIDDEN).to(kind)
        if LAYERS > 5:
            h = activate(times(h, w4 if HELD else block(middle + 3 * HP * HP, HP, HP, TURNED)), HIDDEN).to(kind)
        y = activate(times(h, last if HELD else block(weights + LAST, LP, OP, TURNED)), OUTPUT)
        put_rows(out, i, i < n, y, O, OP, O)


def pack(layers: Sequence[Tensor], network: Network) -> Tensor:
    """[weights] all layers, padded, in the type of the products."""
    flat = []
    for layer, rows_, cols in zip(layers, network.padded, network.padded[1:], strict=False):
        short, narrow = rows_ - layer.shape[0], cols - layer.shape[1]
        layer = pad(layer.detach(), (0, narrow, 0, short)) if short or narrow else layer.detach()
        flat.append(layer.reshape(-1))
    return torch.cat(flat).to(network.kind)


def forward(inputs: Tensor, weights: Tensor, network: Network) -> Tensor:
    """[n, I], packed weights -> [n, O] in the type of the inputs."""
    n = len(inputs)
    out = torch.empty(n, network.widths[-1], dtype=inputs.dtype, device=inputs.device)
    if n:
        # As measured for the fused field (`ngp_step`), 24 warps a multiprocessor.
        grid = (min(triton.cdiv(n, network.tile), programs(inputs.device, 24 // network.warps)),)
        _forward[grid](inputs.detach().contiguous(), weights, out, n, **network.constants)
    return out


def backward(
    inputs: Tensor, weights: Tensor, grad: Tensor, network: Network, wanted: bool, learn: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of the inputs [n, I], in their type, if `wanted`; that of the packed weights, float32, if `learn`.

    grad: [n, O].
    """
    n, size, device = len(inputs), sum(network.sizes), inputs.device
    if n == 0:
        return (torch.zeros_like(inputs) if wanted else None), torch.zeros(size, device=device)
    inputs, grad = inputs.detach().contiguous(), grad.contiguous()
    to_inputs = torch.empty_like(inputs) if wanted else None
    # Eight warps take all registers of a multiprocessor.
    count = min(triton.cdiv(n, network.tile), programs(device, 8 // network.warps))
    parts = torch.empty(count, size, device=device) if learn else None
    kept = torch.empty(n, network.pitch, dtype=network.kind, device=device) if learn and not network.summed else None
    # A kernel needs a pointer also where it writes nothing.
    places = (weights if place is None else place for place in (to_inputs, parts, kept))
    kernels.backward[(count,)](
        inputs, weights, grad, *places, n, **network.constants,
        SUM=learn and network.summed, KEEP=kept is not None, WANTED=wanted, SCALE=network.scale,
    )  # fmt: skip
    if parts is None:
        return to_inputs, None
    if kept is not None:
        _outer_products(inputs, kept, parts, network)
    # In torch a sum over rows has a fixed order.
    return to_inputs, parts.sum(0)


def _outer_products(inputs: Tensor, kept: Tensor, parts: Tensor, network: Network) -> None:
    """parts [programs, weights] from what the backward has kept of every sample."""
    steps, hidden, at = len(network.sizes) - 1, network.padded[1], 0
    for m, size in enumerate(network.sizes):
        rows_, cols = network.padded[m], network.padded[m + 1]
        left, width, pitch = inputs, network.widths[0], network.widths[0]
        if m:
            left, width, pitch = kept[:, (m - 1) * hidden :], rows_, network.pitch
        kernels.outer[(len(parts),)](
            left, kept[:, (steps + m) * hidden :], parts[:, at:], len(inputs), WIDTH=width, LEFT=pitch,
            RIGHT=network.pitch, ROWS=rows_, COLS=cols, TOTAL=sum(network.sizes), SCALE=network.scale,
            TURNED=network.turned, TILE=network.tile, num_warps=8, num_stages=2,
        )  # fmt: skip
        at += size


def unpack(flat: Tensor, network: Network) -> list[Tensor]:
    """Layers without their padding, from all of them [weights]."""
    layers = []
    for m, part in enumerate(flat.split(network.sizes)):
        padded = part.view(network.padded[m], network.padded[m + 1])
        layers.append(padded[: network.widths[m], : network.widths[m + 1]].contiguous())
    return layers
