"""The training step of a hash-grid field as fused kernels: infer, train, Adam and the occupancy update."""

from __future__ import annotations

from typing import Any

import torch
import triton

from raymine.engines.fused.graph import RING as RING
from raymine.engines.fused.graph import GraphTrainer
from raymine.engines.fused.model import HalfModel, hash_field, layers_of
from raymine.engines.fused.problem import NoRoomError
from raymine.engines.fused.stages import ask_field
from raymine.kernels._triton import capability, programs, shared_memory
from raymine.kernels.adam.gpu import adam, row_of
from raymine.kernels.ngp_step.gpu import Way, train, ways_on
from raymine.kernels.ngp_step.gpu_control import add_up, conclude
from raymine.step import TrainData, TrainState

SCALE = 64.0
"""Gradients are multiplied by this before they become float16, so that the small ones survive."""
FIXED = 2.0**32
"""In a deterministic run the table's gradients are integers, of this many a unit, so that their sum does not depend on
the order of the atomic additions."""
_TABLE_BLOCK = 512
"""Numbers of the table that a program of Adam updates: 1,024 take half as long again."""

_PLENTY = 224 << 10
"""Bytes of shared memory that suffice for the first way of `train` and up to 128 encoded numbers."""


class FusedTrainer(GraphTrainer):
    """Trains a hash-grid field through float16 copies of its parameters, which Adam writes along."""

    def __init__(self, state: TrainState, data: TrainData) -> None:
        super().__init__(state, data, SCALE)
        device = state.device
        self.field = hash_field(state.field)
        self._own_parameters()
        self.model = HalfModel(self.field)
        # A wide network needs the registers of 8 warps, and a multiprocessor to itself.
        self._warps = 8 if self.model.shape.HP > 64 else 4
        self.parts = torch.zeros(programs(device, 8 // self._warps), self.model.shape.weights, device=device)
        self.weight_grad = torch.zeros(self.model.shape.weights, device=device)
        self.fixed = FIXED if state.config.deterministic else 0.0
        kind = torch.int64 if self.fixed else torch.float32
        self.table_grad = torch.zeros_like(self.field.table, dtype=kind)
        self._way = self._find_way()
        self.reload()

    def _own_parameters(self) -> None:
        """Put the layers and their moments one after the other in memory, where one kernel updates them all."""
        optimiser = self.state.optimiser
        names = {id(value): name for name, value in optimiser.parameters.items()}
        block = optimiser.block(tuple(names[id(layer)] for layer in layers_of(self.field)))
        assert block.first is not None
        self.weights, self.weights_first, self.weights_second = block.values, block.first, block.second

    def refresh(self) -> None:
        self.model.refresh(self.field)
        self.table_grad.zero_()

    def update_cells(self, step: int, everything: bool) -> None:
        sampler = self.sampler
        # Before the first sweep there is nothing to remember.
        self.grid.decay.fill_(sampler.config.decay_at(step) if sampler.swept else 0.0)
        sampler.swept = True
        name = "all cells" if everything else "some cells"
        self._replay(name, lambda: self.grid.update(self.model, everything))

    def ask_field(self) -> None:
        ask_field(self.buffers, self.model, self.state.config.mining.stop)

    def train(self) -> None:
        train[(self.parts.shape[0],)](*self._train_arguments(), **self._train_constants(self._way))

    def _train_arguments(self) -> tuple[object, ...]:
        b = self.buffers
        samples = (b.rays, b.harmonics, b.ray_id, b.t_start, b.t_end, b.index, b.weight, b.n_chosen, b.gradient, SCALE)
        return (*samples, *self.model.arguments, self.table_grad, self.parts)

    def _train_constants(self, way: Way) -> dict[str, Any]:
        shape = {**self.model.constants, "WEIGHTS": self.model.shape.weights, "FIXED": self.fixed}
        return {**shape, **way._asdict(), "num_warps": self._warps, "num_stages": 1}

    def _find_way(self) -> Way:
        """The quickest way of `train` that finds room on the device. Compiles them one by one where room is short."""
        device, shape = self.state.device, self.model.shape
        wide = self._warps > 4
        if device.type != "cuda":
            return ways_on(0, wide)[0]
        ways, room, needed = ways_on(capability(device), wide), shared_memory(device), 0
        if room >= _PLENTY and shape.LP * shape.F <= 128:
            return ways[0]
        for way in ways:
            compiled = train.warmup(*self._train_arguments(), grid=(1,), **self._train_constants(way))
            needed = int(compiled.metadata.shared)
            if needed <= room:
                return way
        raise NoRoomError(
            f"the fused step of this model needs {needed >> 10} KB of shared memory, and this GPU has {room >> 10} KB"
        )

    def add_up(self) -> None:
        n = self.model.shape.weights
        add_up[(triton.cdiv(n, 64),)](
            self.parts, self.parts.shape[0], n, self.weight_grad, ROWS=128, BLOCK=64, num_warps=8
        )
        self.ranks.add_up(self.buffers, self.weight_grad, self.table_grad)

    def update(self) -> None:
        state, n, counts = self.state, self.model.shape.weights, self.ranks.counts(self.buffers)
        c, batch, table = state.config.optimiser, state.config.batch, self.field.table
        conclude[(1,)](
            self.weight_grad, n, self.schedule, self.control, self.found, self.n_rays, *counts,
            self.step, self.updates, self.rates, self.table_rates, self.rows, RING, batch.samples,
            batch.min_rays, batch.max_rays, BLOCK=1 << 14, num_warps=16,
        )  # fmt: skip
        adam[(triton.cdiv(n, 256),)](
            self.weights, self.model.weights, self.weight_grad, self.weights_first, self.weights_second, self.rates,
            self.rates, self.rates, n, SPARSE=False, MOMENTUM=True, FIXED=0.0, CLEAR=True, ROW=row_of(n), BLOCK=256,
            LEVELS=0, FEATURES=1,
        )  # fmt: skip
        second = state.optimiser.second["field.table"]
        first = state.optimiser.first.get("field.table", second)
        penalties = state.optimiser.penalties.get("field.table")
        adam[(triton.cdiv(table.numel(), _TABLE_BLOCK),)](
            table.data, self.model.table, self.table_grad, first, second, self.table_rates,
            *(penalties or (self.table_rates, self.table_rates)), table.numel(), SPARSE=True,
            MOMENTUM=c.table_beta1 > 0, FIXED=self.fixed, CLEAR=True, ROW=row_of(table.numel()), BLOCK=_TABLE_BLOCK,
            LEVELS=len(penalties.factors) if penalties else 0, FEATURES=table.shape[1],
        )  # fmt: skip
