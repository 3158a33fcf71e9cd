"""The perceptron in Triton: one kernel takes a tile of samples through all layers, and one goes backward.

Activations stay in registers; the forward stores none of them. The backward recomputes the forward, because reading the
inputs and multiplying costs less than reading activations. All layers lie one after another in one array, in the type
of the matrix products. Each is padded with zeros to powers of two: [IP, HP], [HP, HP] ..., [HP, OP]. So hidden layers
may differ in width.

A program processes many tiles. It keeps the weights over its tiles if they take at most `ROOM` bytes. The backward also
keeps the gradients of all layers if there are at most `SUMS` weights; the parts of all programs are then added in a
fixed order. With more weights, the backward writes the activations and gradients of every sample to memory, and the
kernel `outer` computes the weight gradients, one layer at a time.
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
"""Most bytes of padded weights that a program keeps over its tiles."""

SUMS = 12 * 1024
"""Most padded weights whose float32 gradients a program keeps over its tiles: 96 registers of each thread."""

_KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Network(NamedTuple):
    """Shape and activations of a network.

    widths: number of inputs, then the outputs of each layer. padded: the same, padded to powers of two; all hidden
    layers have the same padded width. hidden, output: names of activations. kind: type of the matrix products.
    turned: layers are stored as [outputs, inputs] instead of [inputs, outputs].
    """

    widths: tuple[int, ...]
    padded: tuple[int, ...]
    hidden: str
    output: str
    kind: torch.dtype
    turned: bool = False

    @property
    def sizes(self) -> list[int]:
        """Number of weights of each padded layer."""
        return [a * b for a, b in zip(self.padded, self.padded[1:], strict=False)]

    @property
    def held(self) -> bool:
        """Whether a program keeps all weights over its tiles; otherwise it reads them again for every tile."""
        return sum(self.sizes) * self.kind.itemsize <= ROOM

    @property
    def summed(self) -> bool:
        """Whether a program of the backward keeps the gradients of all weights; otherwise `outer` computes them."""
        return sum(self.sizes) <= SUMS

    @property
    def tile(self) -> int:
        """Samples per tile. Float32 products use no tensor cores and hold operands in registers: 32 samples spill."""
        return 16 if self.kind == torch.float32 else 64

    @property
    def warps(self) -> int:
        """Warps per program.

        On tensor cores, 8 warps compute a product of 64 rows twice, so 4 are better. But with 4 warps and weights that
        are read again for every tile, ptxas 12.8 miscompiles on Hopper: it takes shared memory addresses from registers
        that were never set.
        """
        return 4 if self.kind != torch.float32 and self.held else 8

    @property
    def scale(self) -> float:
        """Factor of gradients inside the kernels, so that small ones do not underflow in float16.

        It is a power of two, so scaling is exact.
        """
        return 128.0 if self.kind == torch.float16 else 1.0

    @property
    def pitch(self) -> int:
        """Numbers that the backward stores per sample if a program does not keep the weight gradients."""
        return 2 * (len(self.padded) - 2) * self.padded[1] + self.padded[-1]

    @property
    def constants(self) -> dict[str, Any]:
        """Compile-time constants and launch options of the kernels."""
        layers, padded = len(self.widths) - 1, self.padded
        return {
            "LAYERS": layers, "I": self.widths[0], "O": self.widths[-1], "IP": padded[0], "HP": padded[1],
            "LP": padded[-2], "OP": padded[-1], "LAST": sum(self.sizes[:-1]), "HIDDEN": self.hidden,
            "OUTPUT": self.output, "HELD": self.held, "TURNED": self.turned, "TILE": self.tile,
            # Prefetching takes shared memory, and many devices have only 99 KB. So it is used for narrow inputs, and
            # only if the weights are not loaded in the loop.
            "num_warps": self.warps, "num_stages": 2 if self.held and padded[0] <= 64 else 1,
        }  # fmt: skip


def network_of(widths: tuple[int, ...], hidden: str, output: str, precision: str, turned: bool = False) -> Network:
    """The `Network` of layers of these widths; `op` has checked them."""
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
        # Rows after the end repeat the last sample: rows of zeros might overflow although no sample does.
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
    """Layers [inputs, outputs] -> [weights]: all layers, padded and concatenated, in the type of the products."""
    flat = []
    for layer, rows_, cols in zip(layers, network.padded, network.padded[1:], strict=False):
        short, narrow = rows_ - layer.shape[0], cols - layer.shape[1]
        layer = pad(layer.detach(), (0, narrow, 0, short)) if short or narrow else layer.detach()
        flat.append(layer.reshape(-1))
    return torch.cat(flat).to(network.kind)


def forward(inputs: Tensor, weights: Tensor, network: Network) -> Tensor:
    """inputs [n, I], packed weights -> [n, O] in the type of the inputs. Without a graph."""
    n = len(inputs)
    out = torch.empty(n, network.widths[-1], dtype=inputs.dtype, device=inputs.device)
    if n:
        # 24 warps per multiprocessor, as measured for the fused field (`ngp_step`).
        grid = (min(triton.cdiv(n, network.tile), programs(inputs.device, 24 // network.warps)),)
        _forward[grid](inputs.detach().contiguous(), weights, out, n, **network.constants)
    return out


def backward(
    inputs: Tensor, weights: Tensor, grad: Tensor, network: Network, wanted: bool, learn: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradient of the inputs [n, I] in their type if `wanted`, and of the packed weights [weights] float32 if `learn`.

    grad: [n, O], the gradient of the output.
    """
    n, size, device = len(inputs), sum(network.sizes), inputs.device
    if n == 0:
        return (torch.zeros_like(inputs) if wanted else None), (torch.zeros(size, device=device) if learn else None)
    inputs, grad = inputs.detach().contiguous(), grad.contiguous()
    to_inputs = torch.empty_like(inputs) if wanted else None
    # Eight warps use all registers of a multiprocessor.
    count = min(triton.cdiv(n, network.tile), programs(device, 8 // network.warps))
    parts = torch.empty(count, size, device=device) if learn else None
    kept = torch.empty(n, network.pitch, dtype=network.kind, device=device) if learn and not network.summed else None
    # A kernel needs a pointer for every argument, also for those that it does not write.
    places = (weights if place is None else place for place in (to_inputs, parts, kept))
    kernels.backward[(count,)](
        inputs, weights, grad, *places, n, **network.constants,
        SUM=learn and network.summed, KEEP=kept is not None, WANTED=wanted, SCALE=network.scale,
    )  # fmt: skip
    if parts is None:
        return to_inputs, None
    if kept is not None:
        _outer_products(inputs, kept, parts, network)
    # torch sums rows in a fixed order, so the result is reproducible.
    return to_inputs, parts.sum(0)


def _outer_products(inputs: Tensor, kept: Tensor, parts: Tensor, network: Network) -> None:
    """Weight gradients: fills parts [programs, weights] from what the backward has stored of every sample."""
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
    """Inverse of `pack`: [weights] -> layers [inputs, outputs] without padding."""
    layers = []
    for m, part in enumerate(flat.split(network.sizes)):
        padded = part.view(network.padded[m], network.padded[m + 1])
        layers.append(padded[: network.widths[m], : network.widths[m + 1]].contiguous())
    return layers
