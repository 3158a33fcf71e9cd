"""The miner: it chooses the samples of a step by their output gradients, and keeps a running average of tau."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raymine.contracts import Selection
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.philox.op import Stream, uniform
from raymine.mining import draw
from raymine.mining.capacity import Capacity
from raymine.mining.config import HardConfig
from raymine.mining.gradients import output_gradients

Outputs = Tensor | Sequence[Tensor]
"""Pre-activations of a field: one tensor or several, each [B, ...]."""


@dataclass(frozen=True)
class Mined:
    """The result of one mined backward pass: the loss [] over all samples, and the samples that were trained on.

    gradient [B, C]: the output gradients by which they were chosen, all outputs side by side, for `mining.diagnose`.
    """

    loss: Tensor
    selection: Selection
    gradient: Tensor


class Miner:
    """Hard sample mining. Its state is `tau` [], the running average of tau, on the device.

    images: number of training images. 1 / images is the rate of the average, unless the config sets one.
    """

    def __init__(self, config: HardConfig | None = None, *, images: int, device: torch.device | str = "cpu") -> None:
        if images < 1:
            raise ConfigError(f"`images` must be at least 1, got {images}.")
        self.config = config or HardConfig()
        self.rate = 1.0 / images if self.config.rate is None else self.config.rate
        self.tau = torch.ones((), device=device)
        self._capacity = Capacity(self.config.high, torch.device(device))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name. Copying saved values into them restores the miner."""
        return {"tau": self.tau, **self._capacity.tensors()}

    @torch.no_grad()
    def choose(self, gradient: Tensor, *, marched: int | None = None, seed: int = 0, step: int) -> Selection:
        """Choose samples by their output gradient [B, C] and update the running average.

        marched: number of all samples of the step, if samples without a gradient are missing in `gradient`; None: B.
        The choice is a function of (seed, step) and the gradients. A sample whose gradient is 0, NaN or infinite is
        never chosen. If there is no other sample, nothing is chosen and the average does not change.
        """
        return self.choose_by_size(draw.norms(gradient), marched=marched, seed=seed, step=step)

    @torch.no_grad()
    def choose_by_size(self, size: Tensor, *, marched: int | None = None, seed: int = 0, step: int) -> Selection:
        """As `choose`, given the gradient norms [B], which must be finite and not negative."""
        checks.columns(size=size)
        checks.present(size=size)
        size = size.float()
        n, config = size.shape[0], self.config
        total = n if marched is None else marched
        if not n <= total <= 2**53:
            raise ConfigError(f"`marched` must be at least the {n} samples given, got {marched}.")
        p = draw.probabilities(size)
        tau = draw.concentration(p, total)
        self.tau.lerp_(torch.where((tau > 0) & (tau < torch.inf), tau, self.tau), self.rate)
        budget = (total / self.tau).clamp(config.low * total, config.high * total)
        if not n:
            return Selection(p.new_zeros(0, dtype=torch.int64), p, tau, budget)
        # A systematic draw needs one random number in all.
        numbers = 1 if config.draw == "systematic" else n
        number = uniform(seed, step, Stream.MINING, (numbers,), size.device)
        if config.draw in ("poisson", "systematic"):
            index, weight = self._poisson(p, budget, number, total)
        else:
            key = -p.double() if config.draw == "topk" else draw.race(p, number)
            index, weight = self._first(key, p, budget, total)
        # An unused entry repeats a chosen sample. Sample 0 would not do: its gradient may be NaN, and NaN * 0 is NaN.
        return Selection(torch.where(weight > 0, index, index[:1]), weight, tau, budget)

    def _poisson(self, p: Tensor, budget: Tensor, number: Tensor, total: int) -> tuple[Tensor, Tensor]:
        if self.config.draw == "poisson":
            taken, chance = draw.poisson(p, budget, number)
        else:
            taken, chance = draw.systematic(p, budget, number[0])
        index, live = self._capacity.compact(taken, total)
        # An unused entry may point at a sample of probability 0. Its weight must be 0, not 0 / 0.
        smallest = torch.finfo(chance.dtype).tiny
        return index, live / chance[index].clamp_min(smallest) if self.config.reweight == "unbiased" else live

    def _first(self, key: Tensor, p: Tensor, budget: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """The samples with the b smallest keys, among those of positive probability."""
        wanted = budget.floor().clamp_min(1).long()
        limit = min(self._capacity.bound(wanted, total) + 1, len(p))
        if limit < len(p):
            wanted = wanted.clamp_max(
                limit - 1
            )  # if there is too little room, choose fewer: one key must not be chosen
        value, index = key.topk(limit, largest=False, sorted=True)
        live = (torch.arange(limit, device=p.device) < wanted) & (p[index] > 0)
        weight = live.to(p.dtype)
        if self.config.reweight == "unbiased":
            # The smallest key that was not chosen. If all were chosen, every inclusion probability is 1.
            lost = torch.where(live, torch.inf, value).min()
            weight = torch.where(live, 1 / -torch.expm1(-p[index].double() * lost), 0.0).to(p.dtype)
        return self._capacity.trim(index, weight, live, total)

    def backward(
        self,
        model: Callable[..., Outputs],
        inputs: Sequence[Tensor],
        objective: Callable[..., Tensor],
        *,
        step: int,
        seed: int = 0,
    ) -> Mined:
        """Replaces `objective(*model(*inputs)).backward()`: parameter gradients come from the chosen samples only.

        model: inputs [B, ...] -> pre-activations [B, ...]. A row of the output must depend on the same row of the
            inputs only.
        objective: pre-activations -> loss []: activation, rendering and loss, over all B samples. If it depends on
            parameters of its own, they get gradients too.

        The model runs on all samples without a graph, then on the chosen samples with a graph.
        """
        with torch.no_grad():
            first = _tuple(model(*inputs))
        _check_rows(first, len(inputs[0]))

        def with_loss(*outputs: Tensor) -> tuple[Tensor, Tensor]:
            loss = objective(*outputs)
            return loss, loss.detach()

        filled, loss = output_gradients(with_loss, first)
        flat = torch.cat([g.reshape(len(g), math.prod(g.shape[1:])) for g in filled], dim=1)
        selection = self.choose(flat, seed=seed, step=step)
        if len(selection.index):
            outputs = _tuple(model(*(part[selection.index] for part in inputs)))
            _check_rows(outputs, len(selection.index))
            pull_back(outputs, filled, selection)
        return Mined(loss, selection, flat)


def pull_back(outputs: Sequence[Tensor], gradients: Sequence[Tensor], selection: Selection) -> None:
    """Propagate gradients [B, ...], times the weights, through `outputs` [b, ...] of the chosen samples."""
    if len(outputs) != len(gradients):
        raise ConfigError(f"`gradients` must be one for each of {len(outputs)} outputs, got {len(gradients)}.")
    chosen = []
    for output, gradient in zip(outputs, gradients, strict=True):
        checks.reals(outputs=output, gradients=gradient)
        checks.columns(weight=selection.weight)
        if not output.ndim or not gradient.ndim or output.shape != (len(selection.weight), *gradient.shape[1:]):
            raise ConfigError(
                f"`outputs` must have one row for each of {len(selection.weight)} chosen samples, and the columns of "
                f"`gradients`, {list(gradient.shape)}; got {list(output.shape)}."
            )
        checks.within("index", selection.index, len(gradient), output.device, len(output))
        checks.together(outputs=output, weight=selection.weight)
        part = gradient[selection.index]
        chosen.append((part * selection.weight.reshape(-1, *(1,) * (part.ndim - 1))).to(output.dtype))
    torch.autograd.backward(outputs, chosen)


def _check_rows(outputs: Sequence[Tensor], rows: int) -> None:
    for output in outputs:
        if not output.ndim or len(output) != rows:
            raise ConfigError(f"the `model` must return one row for each of {rows} inputs, got {list(output.shape)}.")


def _tuple(outputs: Outputs) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
