"""AdamW over parameter groups, its learning-rate schedule, and the gate against non-finite gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from raymine.contracts import Group, Part, Scalars
from raymine.errors import ConfigError, require_finite
from raymine.kernels.adam.op import Rates, update, update_rows
from raymine.kernels.threads import total


@dataclass(frozen=True)
class OptimiserConfig:
    """AdamW. The learning rate warms up linearly over `warmup` steps and decays exponentially to `final` * lr.

    It reaches `final` * lr at the horizon, the number of steps that the run is planned for. Each parameter group
    (`contracts.Group`) has factors on `lr` and `decay`.

    decay: weight decay; a step subtracts learning rate times `decay` times the weights.
    level_decay: factor of a penalty on tables, the sum over their levels of the mean square of a level's numbers. A
        level counts as much as any other, however many entries it has (Zip-NeRF). Its gradient is added where an
        element has a gradient of the loss.
    table_beta1: beta1 of sparse groups, such as hash tables. An entry gets gradients too rarely for its momentum to be
        useful, and 0 saves a third of the memory traffic of an update.
    average: evaluate and render a moving average of the parameters over this share of the steps so far. 0: evaluate the
        parameters themselves.
    """

    lr: float = 1e-2
    warmup: int = 100
    final: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-15
    decay: float = 0.0
    level_decay: float = 0.0
    table_beta1: float = 0.9
    average: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self)
        if not (self.lr > 0 and 0 < self.final <= 1 and self.warmup >= 0):
            raise ConfigError(
                "the optimiser needs lr > 0, 0 < final <= 1 and warmup >= 0; "
                f"got {self.lr}, {self.final} and {self.warmup}."
            )
        betas = (self.beta1, self.beta2, self.table_beta1)
        if not (all(0 <= beta < 1 for beta in betas) and self.eps > 0 and self.decay >= 0):
            raise ConfigError(
                "the optimiser needs 0 <= beta1, beta2, table_beta1 < 1, eps > 0 and decay >= 0; "
                f"got {', '.join(map(str, betas))}, {self.eps} and {self.decay}."
            )
        if not self.level_decay >= 0:
            raise ConfigError(f"the optimiser needs level_decay >= 0, got {self.level_decay}.")

        if not 0 <= self.average < 1:
            raise ConfigError(f"the optimiser needs 0 <= average < 1, got {self.average}.")

    def rate_at(self, step: int, horizon: int) -> float:
        """Learning rate of step `step` (from 0) of a run that is planned for `horizon` steps."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return self.lr * warm * self.final ** min(1.0, step / max(1, horizon))


@dataclass
class Block:
    """Dense parameters and moments that lie one after the other in memory; grad: theirs, of the present step."""

    names: tuple[str, ...]
    values: Tensor
    first: Tensor | None
    second: Tensor
    grad: Tensor | None = None


class LevelPenalties(NamedTuple):
    """The penalty of `OptimiserConfig.level_decay` on one table: offsets [L] int32, the first row of each level, and
    factors [L], the gradient of an element of each level per unit of its value."""

    offsets: Tensor
    factors: Tensor

    @classmethod
    def of(cls, decay: float, levels: tuple[int, ...], table: Tensor) -> LevelPenalties:
        """Of a table [rows, F] whose levels have these numbers of rows."""
        starts = [0, *itertools.accumulate(levels)][:-1]
        factors = [2 * decay / (rows * table.shape[1]) for rows in levels]
        return cls(
            torch.tensor(starts, dtype=torch.int32, device=table.device), torch.tensor(factors, device=table.device)
        )

    def added(self, grad: Tensor, values: Tensor, rows: Tensor | None = None) -> Tensor:
        """Gradients [n, F] of rows [n] (None: all) with that of the penalty, where they are not 0."""
        if rows is None:
            rows = torch.arange(len(values), device=values.device)
        level = torch.searchsorted(self.offsets, rows.to(torch.int32), right=True) - 1
        return torch.where(grad != 0, grad + self.factors[level][:, None] * values, grad)


class Optimiser:
    """The Adam moments of all parameters, by `part.name`. `updates` counts the steps that changed parameters."""

    def __init__(self, config: OptimiserConfig, parts: Mapping[str, Part]) -> None:
        self.config = config
        members = [
            (f"{part}.{name}", value, group)
            for part, owner in parts.items()
            for group in owner.groups()
            for name, value in group.parameters.items()
        ]
        owners: dict[int, str] = {}
        for name, value, _ in members:
            if id(value) in owners:
                raise ConfigError(
                    f"a parameter is in two groups, as `{owners[id(value)]}` and as `{name}`.",
                    hint="Each parameter belongs to one group of one part.",
                )
            owners[id(value)] = name
        self.parameters: dict[str, nn.Parameter] = {name: value for name, value, _ in members}
        self._groups = {name: group for name, _, group in members}
        self.first = {name: torch.zeros_like(value) for name, value in self.parameters.items() if self._beta1(name) > 0}
        self.second = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.updates = 0
        self.penalties = {
            name: LevelPenalties.of(config.level_decay, group.levels, self.parameters[name])
            for name, group in self._groups.items()
            if group.sparse and group.levels and config.level_decay > 0
        }
        self._blocks: list[Block] = []
        dense = [name for name, group in self._groups.items() if not group.sparse]
        # On a CPU an update costs what its numbers cost; on CUDA it costs a launch.
        if all(self.parameters[name].is_cuda and self.parameters[name].dtype == torch.float32 for name in dense):
            self.blocks_of(dense)

    def groups(self) -> list[Group]:
        return []

    def tensors(self) -> dict[str, Tensor]:
        """The moments, which are saved."""
        first = {f"first.{name}": value for name, value in self.first.items()}
        return first | {f"second.{name}": value for name, value in self.second.items()}

    def scalars(self) -> Scalars:
        return {"updates": self.updates}

    def restored(self, scalars: Scalars) -> None:
        self.updates = int(scalars["updates"])
        self.clear()

    def _beta1(self, name: str) -> float:
        return self.config.table_beta1 if self._groups[name].sparse else self.config.beta1

    def group_of(self, name: str) -> Group:
        """The group of a parameter, by `part.name`."""
        return self._groups[name]

    @torch.no_grad()
    def move_rows(self, name: str, source: Tensor) -> None:
        """Give each row of a parameter's moments those of row source[row]; 0 where it is -1."""
        for moments in (self.first.get(name), self.second[name]):
            if moments is not None:
                there = (source >= 0).view(-1, *[1] * (moments.ndim - 1))
                moments.copy_(torch.where(there, moments[source.clamp_min(0)], 0.0))

    def blocks_of(self, names: Sequence[str]) -> list[Block]:
        """Blocks that hold these dense parameters, one for each group; see `block`."""
        by_group: dict[int, list[str]] = {}
        for name in names:
            by_group.setdefault(id(self._groups[name]), []).append(name)
        return [self.block(tuple(members)) for members in by_group.values()]

    def block(self, names: tuple[str, ...]) -> Block:
        """Lay out dense parameters of one group, and their moments, one after the other in memory.

        One kernel then updates them all; parameters and moments become views. Where they lie so already, nothing moves.
        """
        for block in self._blocks:
            if block.names == names:
                return block
        self._blocks = [block for block in self._blocks if not set(block.names) & set(names)]
        parameters = [self.parameters[name] for name in names]
        values, second = _joined(parameters), _joined([self.second[name] for name in names])
        first = _joined([self.first[name] for name in names]) if self._beta1(names[0]) > 0 else None
        start = 0
        for name, parameter in zip(names, parameters, strict=True):
            span = slice(start, start + parameter.numel())
            parameter.data = values[span].view_as(parameter)
            self.second[name] = second[span].view_as(parameter)
            if first is not None:
                self.first[name] = first[span].view_as(parameter)
            start = span.stop
        self._blocks.append(Block(names, values, first, second))
        return self._blocks[-1]

    def _join_gradients(self) -> None:
        """One tensor of gradients for every block all of whose parameters have one."""
        for block in self._blocks:
            grads = [self.parameters[name].grad for name in block.names]
            whole = [grad for grad in grads if grad is not None and not grad.is_sparse]
            block.grad = _joined(whole) if len(whole) == len(grads) else None

    def gate(self, loss: Tensor) -> Tensor:
        """[] bool: whether the loss [] and all gradients are finite, from one sum. Does not wait for the device."""
        self._join_gradients()
        joined = {name for block in self._blocks if block.grad is not None for name in block.names}
        grads = [p.grad for name, p in self.parameters.items() if p.grad is not None and name not in joined]
        grads += [block.grad for block in self._blocks if block.grad is not None]
        sums = (total(grad._values() if grad.is_sparse else grad) for grad in grads)
        return torch.isfinite(sum(sums, loss.detach()))

    def clear(self) -> None:
        """Set all gradients to None."""
        for parameter in self.parameters.values():
            parameter.grad = None
        for block in self._blocks:
            block.grad = None

    def step(self, rate: float, gate: Tensor, factors: Mapping[str, float] | None = None) -> None:
        """Update the parameters if `gate` [] is true, and clear the gradients.

        factors: on the rate, for parameters whose rate has a schedule of its own, by `part.name`.

        This does not count the update in `updates`, since reading the gate would wait for the device. The caller counts
        it when it reads the gate.
        """
        done, factors = set(), factors or {}
        for block in self._blocks:
            if block.grad is not None:
                rates = self._rates(block.names[0], rate * factors.get(block.names[0], 1.0), gate)
                update(block.values, block.grad, block.first, block.second, rates)
                done |= set(block.names)
        for name, parameter in self.parameters.items():
            if parameter.grad is None or name in done:
                continue
            group, rates = self._groups[name], self._rates(name, rate * factors.get(name, 1.0), gate)
            first, second, penalty = self.first.get(name), self.second[name], self.penalties.get(name)
            if parameter.grad.is_sparse:
                grad = parameter.grad.coalesce()
                rows, values = grad._indices()[0], grad._values()
                if penalty is not None:
                    values = penalty.added(values, parameter.detach()[rows], rows)
                update_rows(parameter, rows, values, first, second, rates, distinct=True)
            else:
                whole = parameter.grad
                if penalty is not None:
                    whole = penalty.added(whole, parameter.detach())
                update(parameter, whole, first, second, rates, sparse=group.sparse)
        self.clear()

    def _rates(self, name: str, rate: float, gate: Tensor) -> Rates:
        c, group = self.config, self._groups[name]
        decay = c.decay * group.decay
        return Rates(rate * group.rate, self._beta1(name), c.beta2, c.eps, decay, self.updates + 1, gate)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])
