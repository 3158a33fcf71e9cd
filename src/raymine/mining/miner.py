"""The miner: decides from output gradients which samples a step trains on, and remembers how concentrated they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raymine.contracts import Selection
from raymine.errors import ConfigError
from raymine.kernels.philox.op import Stream, uniform
from raymine.mining import draw
from raymine.mining.capacity import Capacity
from raymine.mining.config import HardConfig
from raymine.mining.gradients import output_gradients

Outputs = Tensor | Sequence[Tensor]
"""Pre-activations of a field: one tensor or several, each with the samples along its first dimension."""


@dataclass(frozen=True)
class Mined:
    """What one mined backward pass found: the loss [] over all samples, and the selection that was trained on.

    gradient [B, C] is what it was chosen by: the outputs of a sample side by side, for `mining.diagnose`.
    """

    loss: Tensor
    selection: Selection
    gradient: Tensor


class Miner:
    """Hard sample mining with its state: `tau`, the running average, a number on the device.

    images: how many training images there are, which sets the rate of the average unless the config does.
    """

    def __init__(self, config: HardConfig | None = None, *, images: int, device: torch.device | str = "cpu") -> None:
        if images < 1:
            raise ConfigError(f"`images` must be at least 1, got {images}.")
        self.config = config or HardConfig()
        self.rate = 1.0 / images if self.config.rate is None else self.config.rate
        self.tau = torch.ones((), device=device)
        self._capacity = Capacity(self.config.high, torch.device(device))

    def tensors(self) -> dict[str, Tensor]:
        """Everything to save, by name; copying saved values back into these restores the miner."""
        return {"tau": self.tau, **self._capacity.tensors()}

    @torch.no_grad()
    def choose(self, gradient: Tensor, *, marched: int | None = None, seed: int = 0, step: int) -> Selection:
        """Choose samples by their output gradient [B, C] and update the running average.

        marched: samples of the step, where those that cannot have a gradient were left out of `gradient` (B if None).
        Draws are a function of (seed, step). Where every gradient is 0, or there is none, nothing is chosen and the
        average stays as it is; a sample whose gradient is 0, NaN or infinite is never chosen.
        """
        if gradient.ndim != 2:
            raise ConfigError(f"`gradient` must have shape [B, C], got {list(gradient.shape)}.")
        return self.choose_by_size(draw.norms(gradient), marched=marched, seed=seed, step=step)

    @torch.no_grad()
    def choose_by_size(self, size: Tensor, *, marched: int | None = None, seed: int = 0, step: int) -> Selection:
        """As `choose`, from the norms [B] of the gradients, finite and not negative."""
        n, config = size.shape[0], self.config
        total = n if marched is None else marched
        if total < n:
            raise ConfigError(f"`marched` must be at least the {n} samples given, got {marched}.")
        p = draw.probabilities(size)
        tau = draw.concentration(p, total)
        self.tau.lerp_(torch.where(tau > 0, tau, self.tau), self.rate)
        budget = (total / self.tau).clamp(config.low * total, config.high * total)
        if not n:
            return Selection(p.new_zeros(0, dtype=torch.int64), p, tau, budget)
        # One number serves a whole systematic draw.
        numbers = 1 if config.draw == "systematic" else n
        number = uniform(seed, step, Stream.MINING, (numbers,), size.device)
        if config.draw in ("poisson", "systematic"):
            index, weight = self._poisson(p, budget, number, total)
        else:
            key = -p.double() if config.draw == "topk" else draw.race(p, number)
            index, weight = self._first(key, p, budget, total)
        # An empty place repeats a chosen sample: sample 0 may be one whose gradient is NaN, and NaN times 0 is NaN.
        return Selection(torch.where(weight > 0, index, index[:1]), weight, tau, budget)

    def _poisson(self, p: Tensor, budget: Tensor, number: Tensor, total: int) -> tuple[Tensor, Tensor]:
        if self.config.draw == "poisson":
            taken, chance = draw.poisson(p, budget, number)
        else:
            taken, chance = draw.systematic(p, budget, number[0])
        index, live = self._capacity.compact(taken, total)
        # An empty place may point at a sample of chance 0: its weight is to be 0, not 0 / 0.
        smallest = torch.finfo(chance.dtype).tiny
        return index, live / chance[index].clamp_min(smallest) if self.config.reweight == "unbiased" else live

    def _first(self, key: Tensor, p: Tensor, budget: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """The b smallest keys among samples of positive probability."""
        wanted = budget.floor().clamp_min(1).long()
        limit = min(self._capacity.bound(wanted, total) + 1, len(p))
        if limit < len(p):
            wanted = wanted.clamp_max(limit - 1)  # where room is short, fewer win: one key must be known to have lost
        value, index = key.topk(limit, largest=False, sorted=True)
        live = (torch.arange(limit, device=p.device) < wanted) & (p[index] > 0)
        weight = live.to(p.dtype)
        if self.config.reweight == "unbiased":
            # The smallest key that lost; where none did, every sample was certain.
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
        """Stands in for `objective(*model(*inputs)).backward()`: gradients reach the parameters through few samples.

        model: [B, ...] inputs -> pre-activations [B, ...]; each row of the output depends on that row of the input.
        objective: pre-activations -> loss []. It sees all B samples: activation, rendering, loss. Parameters that it
        holds itself get their gradients as well.
        The model runs on everything without a graph, then again with one on the chosen samples only.
        """
        with torch.no_grad():
            first = _tuple(model(*inputs))

        def with_loss(*outputs: Tensor) -> tuple[Tensor, Tensor]:
            loss = objective(*outputs)
            return loss, loss.detach()

        filled, loss = output_gradients(with_loss, first)
        flat = torch.cat([g.reshape(len(g), math.prod(g.shape[1:])) for g in filled], dim=1)
        selection = self.choose(flat, seed=seed, step=step)
        if len(selection.index):
            outputs = _tuple(model(*(part[selection.index] for part in inputs)))
            pull_back(outputs, filled, selection)
        return Mined(loss, selection, flat)


def pull_back(outputs: Sequence[Tensor], gradients: Sequence[Tensor], selection: Selection) -> None:
    """Send stored gradients [B, ...], weighted, back through `outputs` [b, ...] of the chosen samples."""
    chosen = []
    for gradient in gradients:
        part = gradient[selection.index]
        chosen.append(part * selection.weight.reshape(-1, *(1,) * (part.ndim - 1)))
    torch.autograd.backward(outputs, chosen)


def _tuple(outputs: Outputs) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
