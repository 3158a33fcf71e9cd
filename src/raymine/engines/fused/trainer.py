"""A training step as one CUDA graph: draw, march, infer, judge, select, train, Adam.

The device never waits for the host. Counts stay on the device. A step writes its report to a ring buffer, which the
host reads once per call of `advance`. Buffers have a fixed size. Rays whose samples do not fit are counted, and the
buffers grow after that call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton

from raymine.contracts import StepReport
from raymine.engines.fused.buffers import ROOM, TrainBuffers
from raymine.engines.fused.draws import Course, choose
from raymine.engines.fused.grid import DeviceGrid
from raymine.engines.fused.model import HalfModel, colour_loss, hash_field, layers_of, occupancy_of
from raymine.engines.fused.problem import NoRoomError
from raymine.engines.fused.rays import DeviceRays
from raymine.engines.fused.stages import ask_field, march_rays
from raymine.kernels._triton import capability, power_of_two, programs, shared_memory
from raymine.kernels.adam.gpu import adam, row_of
from raymine.kernels.judge.gpu import judge
from raymine.kernels.ngp_step.gpu import Way, train, ways_on
from raymine.kernels.ngp_step.gpu_control import add_up, budget, conclude
from raymine.kernels.philox.op import Stream
from raymine.kernels.select.gpu import select
from raymine.step import TrainData, TrainState

RING = 64
"""Rows of the ring buffer of reports, and so the most steps of one `advance`."""
ROW = 10
"""Numbers per report, see `conclude`."""
SCALE = 64.0
"""Factor of gradients before they become float16, so that small ones do not underflow."""
FIXED = 2.0**32
"""In a deterministic run the gradient of the table is stored as integers, gradient * FIXED, so the sum does not depend
on the order of the atomics."""
_BLOCK = 1024
_TABLE_BLOCK = 512
"""Elements of the table per program of Adam: 1,024 take half as long again."""

_PLENTY = 224 << 10
"""Bytes of shared memory that suffice for the first variant of `train`, for encodings of at most 128 numbers."""

_log = logging.getLogger(__name__)


class FusedTrainer:
    """Trains a `TrainState` in place: it updates the state's own parameters, moments, grid values and counters."""

    def __init__(self, state: TrainState, data: TrainData) -> None:
        self.state, self.data = state, data
        self.field, self.sampler, self._loss = hash_field(state.field), occupancy_of(state), colour_loss(state)
        device = state.device
        self._programs = programs(device, 32)
        self._own_parameters()
        self.model = HalfModel(self.field)
        self.rays = DeviceRays(state, data)
        self.seed = self.rays.seed
        # Everything that the host reads is in one tensor, so that one copy is enough.
        self.told = torch.zeros(RING * ROW + 2, device=device)
        self.rows = self.told[:-2].view(RING, ROW)
        self.n_rays, self.updates = self.told[-2:].view(torch.int32).split(1)
        self.step = torch.zeros_like(self.seed[:1])
        self.tau = torch.ones(1, device=device)
        self.grid = DeviceGrid(self.sampler, self.seed, self.step)
        self.schedule = torch.zeros(10, device=device)
        self.control, self.found = torch.zeros(2, device=device), torch.zeros(4, device=device)
        self.rates, self.table_rates = torch.zeros(8, device=device), torch.zeros(8, device=device)
        self.sums = torch.zeros(self._programs, 8, device=device)
        # A wide network needs the registers of 8 warps, so that only one program fits on a multiprocessor.
        self._warps = 8 if self.model.shape.HP > 64 else 4
        self.parts = torch.zeros(programs(device, 8 // self._warps), self.model.shape.weights, device=device)
        self.weight_grad = torch.zeros(self.model.shape.weights, device=device)
        self.fixed = FIXED if state.config.deterministic else 0.0
        kind = torch.int64 if self.fixed else torch.float32
        self.table_grad = torch.zeros_like(self.field.table, dtype=kind)
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._ran: set[str] = set()
        self._scheduled: tuple[float, ...] = ()
        self.buffers = TrainBuffers(state.config.batch.max_rays, self._room(), device)
        self._way = self._find_way()
        self.reload()

    def _room(self) -> int:
        return _whole_blocks(ROOM * self.state.config.batch.samples)

    def _own_parameters(self) -> None:
        """Make all layers, and their moments, contiguous in memory, so that one kernel can update them together."""
        field, optimiser = self.field, self.state.optimiser
        names = {id(value): name for name, value in optimiser.parameters.items()}
        layers = layers_of(field)
        self.weights, self.weights_first, self.weights_second = (
            torch.cat([part.detach().reshape(-1) for part in parts])
            for parts in (
                layers,
                [optimiser.first[names[id(layer)]] for layer in layers],
                [optimiser.second[names[id(layer)]] for layer in layers],
            )
        )
        start = 0
        for layer in layers:
            span, name = slice(start, start + layer.numel()), names[id(layer)]
            layer.data = self.weights[span].view_as(layer)
            optimiser.first[name] = self.weights_first[span].view_as(layer)
            optimiser.second[name] = self.weights_second[span].view_as(layer)
            start = span.stop

    @torch.no_grad()
    def reload(self) -> None:
        """Copy the current state to the device. Needed after the state was restored, or changed by other code."""
        state = self.state
        self.step.fill_(state.step)
        self.updates.fill_(state.optimiser.updates)
        self.n_rays.fill_(state.rays)
        if state.miner is not None:
            self.tau.copy_(state.miner.tau)
        self.model.refresh(self.field)
        self.grid.refresh()
        self.table_grad.zero_()
        self._known = self._counters()

    def _counters(self) -> tuple[int, ...]:
        """Counters of the state. If they differ from `_known`, other code has changed the state."""
        state = self.state
        return state.restored, state.step, state.optimiser.updates, state.rays

    def advance(self, steps: int) -> list[StepReport]:
        """Train min(steps, RING) steps. Returns one report per step. Waits for the device once, at the end."""
        state = self.state
        if self._counters() != self._known:
            self.reload()
        self._set_schedule()
        first = state.step
        for now in range(first, first + min(steps, RING)):
            if self.sampler.due(now):
                self._update_grid(now)
            self._replay("step", self.run_stages)
            if state.average is not None:
                state.average.follow(self.field, now + 1)
        state.step = first + min(steps, RING)
        return self._read(first)

    def _set_schedule(self) -> None:
        c = self.state.config.optimiser
        numbers = (
            c.lr, c.warmup, math.log(c.final), self.state.horizon, c.beta1, c.beta2, c.eps, SCALE,
            c.table_beta1, c.decay,
        )  # fmt: skip
        if numbers != self._scheduled:
            self.schedule.copy_(torch.tensor(numbers, dtype=torch.float32))
            self._scheduled = numbers

    def _read(self, first: int) -> list[StepReport]:
        """Read the reports of the steps since `first`, and update the counters of the state."""
        state = self.state
        told = self.told.cpu().numpy()
        rows = told[:-2].reshape(RING, ROW)
        state.rays, state.optimiser.updates = told[-2:].view(np.int32).tolist()
        if state.miner is not None:
            state.miner.tau.copy_(self.tau[0])
        self._known = self._counters()
        reports = [self._report(step, rows[step % RING]) for step in range(first, state.step)]
        if any(report.lost for report in reports):
            self._grow()
        return reports

    def _report(self, step: int, row: np.ndarray) -> StepReport:
        loss, error, rays, marched, chosen, tau, wanted, rate, counts, lost = (float(value) for value in row)
        extra = {"tau": tau, "budget": wanted} if self.state.miner is not None else {}
        return StepReport(step, loss, error, int(rays), int(marched), int(chosen), rate, counts > 0, extra, int(lost))

    def _grow(self) -> None:
        """Allocate larger buffers, because samples of some rays did not fit."""
        capacity = _whole_blocks(self.buffers.capacity * ROOM)
        _log.info("There is now room for %d samples.", capacity)
        self._graphs.pop("step", None)
        self.buffers = TrainBuffers(self.buffers.max_rays, capacity, self.state.device)

    def _update_grid(self, step: int) -> None:
        sampler = self.sampler
        everything = not sampler.swept or step < sampler.config.full_steps
        # The first sweep overwrites the values: there are no earlier ones.
        self.grid.decay.fill_(sampler.config.decay_at(step) if sampler.swept else 0.0)
        sampler.swept = True
        sampler.changed()
        name = "all cells" if everything else "some cells"
        self._replay(name, lambda: self.grid.update(self.model, everything))

    def _replay(self, name: str, work: Callable[[], None]) -> None:
        """Run `work`: directly in the first call of a name, which compiles kernels, then as a CUDA graph."""
        if self.state.device.type != "cuda":
            work()
            return
        graph = self._graphs.get(name)
        if graph is None and name in self._ran:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            self._graphs[name] = graph
        if graph is None:
            work()
            self._ran.add(name)
        else:
            graph.replay()

    def replay_only(self, steps: int) -> None:
        """Replay steps, grid updates and averaging without reading results. For timing of the device only."""
        average, every = self.state.average, self.sampler.config.every
        for i in range(steps):
            if i % every == 0:
                self._graphs.get("some cells", self._graphs["step"]).replay()
            self._graphs["step"].replay()
            if average is not None:
                average.follow(self.field, self.state.step + i + 1)

    def run_stages(self) -> None:
        """One training step: all stages in order."""
        self.draw()
        march_rays(self.buffers, self.grid, self.n_rays)
        ask_field(self.buffers, self.model, self.state.config.mining.stop)
        self.judge()
        self.select()
        self.train()
        self.update()

    def draw(self) -> None:
        """Draw the rays of the step and their targets."""
        b = self.buffers
        self.rays.fill(self.n_rays, self.step, b.rays, b.harmonics, b.wanted, b.jitter)

    def judge(self) -> None:
        """Compute loss and output gradients of all samples, and the number of samples to train on."""
        b, config = self.buffers, self.state.config
        judge[(self._programs,)](
            b.raw, b.t_start, b.t_end, b.first, b.seen, b.count, b.wanted, self.n_rays, self._loss.threshold,
            config.mining.stop, config.mining.faint, b.gradient, b.size, self.sums, b.size,
            PRUNE=config.mining.policy == "prune", ALL=config.mining.policy == "none", PER_RAY=False, CHUNK=32,
            num_warps=1,
        )  # fmt: skip
        hard, miner = config.mining.hard, self.state.miner
        budget[(1,)](
            self.sums, self._programs, b.n_samples, self.tau, self.control, self.found, miner.rate if miner else 0.0,
            hard.low, hard.high, SUMS=power_of_two(self._programs), HARD=miner is not None, num_warps=32,
        )  # fmt: skip

    def select(self) -> None:
        """Choose the samples to train on by the mining policy."""
        b, mining = self.buffers, self.state.config.mining
        if mining.policy == "hard" and mining.hard.draw != "poisson":
            choose(b, mining.hard, Course(self.seed, self.step, self.control, self.found))
            return
        blocks = b.capacity // _BLOCK
        for write in (False, True):
            select[(blocks,)](
                b.size, b.n_samples, self.control, self.seed, self.step, b.block_count, b.n_chosen, b.index,
                b.weight, WRITE=write, STREAM=int(Stream.MINING), HARD=mining.policy == "hard",
                UNBIASED=mining.policy == "hard" and mining.hard.reweight == "unbiased",
                EVERY=mining.policy == "none", BLOCK=_BLOCK,
            )  # fmt: skip

    def train(self) -> None:
        """Compute the gradients of table and layers from the chosen samples."""
        train[(self.parts.shape[0],)](*self._train_arguments(), **self._train_constants(self._way))

    def _train_arguments(self) -> tuple[object, ...]:
        b = self.buffers
        samples = (b.rays, b.harmonics, b.ray_id, b.t_start, b.t_end, b.index, b.weight, b.n_chosen, b.gradient, SCALE)
        return (*samples, *self.model.arguments, self.table_grad, self.parts)

    def _train_constants(self, way: Way) -> dict[str, Any]:
        shape = {**self.model.constants, "WEIGHTS": self.model.shape.weights, "FIXED": self.fixed}
        return {**shape, **way._asdict(), "num_warps": self._warps, "num_stages": 1}

    def _find_way(self) -> Way:
        """The fastest variant of `train` that fits into the shared memory of the device. NoRoomError if none does.

        If shared memory is scarce, it compiles the variants one after another to learn what they need.
        """
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

    def update(self) -> None:
        """Apply Adam to layers and table, unless loss or gradients are not finite; write the report of the step."""
        b, state, n = self.buffers, self.state, self.model.shape.weights
        c, batch, table = state.config.optimiser, state.config.batch, self.field.table
        add_up[(triton.cdiv(n, 64),)](
            self.parts, self.parts.shape[0], n, self.weight_grad, ROWS=128, BLOCK=64, num_warps=8
        )
        conclude[(1,)](
            self.weight_grad, n, self.schedule, self.control, self.found, self.n_rays, b.n_marched, b.n_chosen,
            b.n_lost, self.step, self.updates, self.rates, self.table_rates, self.rows, RING, batch.samples,
            batch.min_rays, batch.max_rays, BLOCK=1 << 14, num_warps=16,
        )  # fmt: skip
        adam[(triton.cdiv(n, 256),)](
            self.weights, self.model.weights, self.weight_grad, self.weights_first, self.weights_second, self.rates, n,
            SPARSE=False, MOMENTUM=True, FIXED=0.0, CLEAR=True, ROW=row_of(n), BLOCK=256,
        )  # fmt: skip
        second = state.optimiser.second["field.table"]
        first = state.optimiser.first.get("field.table", second)
        adam[(triton.cdiv(table.numel(), _TABLE_BLOCK),)](
            table.data, self.model.table, self.table_grad, first, second, self.table_rates, table.numel(),
            SPARSE=True, MOMENTUM=c.table_beta1 > 0, FIXED=self.fixed, CLEAR=True, ROW=row_of(table.numel()),
            BLOCK=_TABLE_BLOCK,
        )  # fmt: skip


def _whole_blocks(samples: float) -> int:
    """`samples`, rounded up to a multiple of the block size of `select`."""
    return -int(-samples // _BLOCK) * _BLOCK
