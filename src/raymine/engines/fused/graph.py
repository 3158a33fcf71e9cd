"""A training step as one CUDA graph: what every model shares.

Draw, march, judge and select are Triton kernels that read counts from the device. How the field is evaluated, trained
and updated is up to the subclass: fused kernels (`FusedTrainer`) or plain torch (`captured.CapturedTrainer`). Nothing
waits for the host: what a step reports goes into a ring of rows, which the host reads once per call of `advance`.
Buffers have a fixed size: rays that find no room are counted, and the buffers grow.
"""

from __future__ import annotations

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import torch

from raymine.contracts import StepReport
from raymine.engines.fused.buffers import ROOM, TrainBuffers
from raymine.engines.fused.draws import Course, choose_samples
from raymine.engines.fused.grid import DeviceGrid
from raymine.engines.fused.model import judged_loss_of, occupancy_of
from raymine.engines.fused.ranks import DeviceRanks
from raymine.engines.fused.rays import DeviceRays
from raymine.engines.fused.stages import march_rays
from raymine.kernels._triton import power_of_two, programs
from raymine.kernels.judge.gpu import judge
from raymine.kernels.ngp_step.gpu_control import budget
from raymine.kernels.philox.op import Stream
from raymine.kernels.select.gpu import select
from raymine.step import TrainData, TrainState

RING = 64
"""Rows of reports: the most steps of one `advance`."""
ROW = 10
"""Numbers of a report, see `conclude`."""
_BLOCK = 1024

_log = logging.getLogger(__name__)


class GraphTrainer(ABC):
    """Advances a `TrainState` in place: its parameters, moments, grid values and counters stay the ones it saves.

    scale: gradients are multiplied by this until the optimiser divides by it again.
    """

    room = ROOM
    """Samples that fit into the buffers, over samples that are wanted."""
    fades = False
    """Whether the field is evaluated with the weights of its levels that the step calls for."""

    def __init__(self, state: TrainState, data: TrainData, scale: float) -> None:
        self.state, self.data, self.scale = state, data, scale
        self.sampler, self._loss = occupancy_of(state), judged_loss_of(state)
        device = state.device
        self._programs = programs(device, 32)
        self.rays, self.ranks = DeviceRays(state, data), DeviceRanks(state.ranks, device)
        self.seed = self.rays.seed
        # What the host reads lies together, and is read at once.
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
        # Torch's own stream for captures lies on the device of the first capture of the process.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._ran: set[str] = set()
        self._scheduled: tuple[float, ...] = ()
        self.buffers = TrainBuffers(state.config.batch.max_rays, self._room(), device)

    @abstractmethod
    def ask_field(self) -> None:
        """Fill `raw` and `seen` of the buffers: pre-activations of the marched samples, and how many a ray sees."""

    @abstractmethod
    def train(self) -> None:
        """Gradients of the parameters from those of the chosen samples."""

    @abstractmethod
    def add_up(self) -> None:
        """Sum the gradients over the ranks of the run."""

    @abstractmethod
    def update(self) -> None:
        """Conclude the step and update the parameters."""

    @abstractmethod
    def update_cells(self, step: int, everything: bool) -> None:
        """One update of the occupancy grid before training step `step`."""

    @abstractmethod
    def refresh(self) -> None:
        """Take the parameters of the state as they are now."""

    def _room(self) -> int:
        return _whole_blocks(self.room * self.state.config.batch.samples / self.state.ranks.world)

    @torch.no_grad()
    def reload(self) -> None:
        """Take the state as it is now: after it was restored, or changed by another hand."""
        state = self.state
        self.step.fill_(state.step)
        self.updates.fill_(state.optimiser.updates)
        self.n_rays.fill_(state.rays)
        self.rays.follow(state)
        if state.miner is not None:
            self.tau.copy_(state.miner.tau)
        self.refresh()
        self.grid.refresh()
        self._known = self._counters()

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Context for steps that do not count: at its end the state is restored. Captured graphs are kept."""
        state = self.state
        kept = {name: value.detach().clone() for name, value in state.tensors().items()}, state.scalars()
        yield
        state.restore(*kept)
        self.reload()

    def _counters(self) -> tuple[int, ...]:
        """What tells that the state was changed by another hand."""
        state = self.state
        return state.restore_count, state.step, state.optimiser.updates, state.rays, int(state.refining)

    def advance(self, steps: int) -> list[StepReport]:
        """Train `steps` steps (at most RING); their reports. One wait for the device, at the end."""
        state = self.state
        if self._counters() != self._known:
            self.reload()
        self._set_schedule()
        if self.fades:
            # Once in a call: the copy of the weights waits for the device.
            state.fade_levels()
        first = state.step
        for now in range(first, first + min(steps, RING)):
            state.prepare_field(now)
            if self.sampler.due(now):
                self._update_grid(now)
            self.rays.prepare(now)
            self._take_step()
            if state.average is not None:
                state.average.follow(state.module, now + 1)
        state.step = first + min(steps, RING)
        return self._read(first)

    def _set_schedule(self) -> None:
        c = self.state.config.optimiser
        numbers = (
            c.lr, c.warmup, math.log(c.final), self.state.horizon, c.beta1, c.beta2, c.eps, self.scale,
            c.table_beta1, c.decay,
        )  # fmt: skip
        if numbers != self._scheduled:
            self.schedule.copy_(torch.tensor(numbers, dtype=torch.float32))
            self._scheduled = numbers

    def _read(self, first: int) -> list[StepReport]:
        """Reports of the steps since `first`; also brings the counters of the state up to date."""
        state = self.state
        state.ranks.await_device(state.device)
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
        """More room, since rays were lost for want of it."""
        capacity = _whole_blocks(self.buffers.capacity * ROOM)
        _log.info("There is now room for %d samples.", capacity)
        self._drop_step()
        self.buffers = TrainBuffers(self.buffers.max_rays, capacity, self.state.device)

    def _update_grid(self, step: int) -> None:
        sampler = self.sampler
        everything = not sampler.swept or sampler.config.visits_all(step)
        self.update_cells(step, everything)
        sampler.changed()

    def _take_step(self) -> None:
        if self.ranks.in_graph:
            self._replay("step", self.run_stages)
            return
        for name, work, sends in self._stages():
            if sends:
                work()
            else:
                self._replay(name, work)

    def drop_graphs(self) -> None:
        """Capture everything anew when it runs next."""
        self._graphs.clear()

    def _drop_step(self) -> None:
        """Capture the step anew when it is taken next."""
        for name in ("step", *(name for name, _, _ in self._stages())):
            self._graphs.pop(name, None)

    def _replay(self, name: str, work: Callable[[], None]) -> None:
        """Run `work`, as a graph from the second time on: the first compiles what must be compiled."""
        if self.state.device.type != "cuda":
            work()
            return
        graph = self._graphs.get(name)
        if graph is None and name in self._ran:
            graph = torch.cuda.CUDAGraph()
            # Another thread may be copying a checkpoint to the host, which must not end the capture.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                work()
            self._graphs[name] = graph
        if graph is None:
            work()
            self._ran.add(name)
        else:
            graph.replay()

    def replay_only(self, steps: int) -> None:
        """Steps, grid updates and averages back to back without a look at their results, to time the device alone."""
        average, every = self.state.average, self.sampler.config.every
        for i in range(steps):
            if i % every == 0:
                self._graphs.get("some cells", self._graphs["step"]).replay()
            self._graphs["step"].replay()
            if average is not None:
                average.follow(self.state.module, self.state.step + i + 1)

    def run_stages(self) -> None:
        """One step, stage by stage."""
        for _, work, _ in self._stages():
            work()

    def _stages(self) -> tuple[tuple[str, Callable[[], None], bool], ...]:
        """The stages of a step in order: name, what it does, and whether it sends something to other ranks."""
        return (
            ("look", self.look, False),
            ("sum judged", lambda: self.ranks.sum_judged(self.buffers, self.sums), True),
            ("learn", self.learn, False),
            ("add up", self.add_up, True),
            ("update", self.update, False),
        )

    def look(self) -> None:
        """The first pass: which samples there are, and the gradients of the loss to their pre-activations."""
        self.draw()
        march_rays(self.buffers, self.grid, self.n_rays)
        self.ask_field()
        self.judge_samples()

    def learn(self) -> None:
        """The second pass: gradients of the parameters from the chosen samples."""
        self.set_budget()
        self.select()
        self.train()

    def draw(self) -> None:
        b = self.buffers
        self.rays.fill(self.n_rays, self.step, b.rays, b.harmonics, b.wanted, b.jitter, b.image)
        self.ranks.keep_own_rays(b, self.n_rays)

    def judge(self) -> None:
        """Gradients of the samples, and the budget of a step of one process."""
        self.judge_samples()
        self.set_budget()

    def judge_samples(self) -> None:
        b, config, loss = self.buffers, self.state.config, self._loss
        judge[(self._programs,)](
            b.raw, b.t_start, b.t_end, b.first, b.seen, b.count, b.wanted, self.n_rays, loss.colour.threshold,
            config.mining.stop, config.mining.faint, loss.distortion, config.near_fade, b.gradient, b.size, self.sums,
            b.size, PRUNE=config.mining.policy == "prune", ALL=config.mining.policy == "none", PER_RAY=False,
            SPREAD=loss.distortion > 0, FADE=config.near_fade > 0, CHUNK=32, num_warps=1,
        )  # fmt: skip

    def set_budget(self) -> None:
        """The number of samples to choose, and the sums that the step reports."""
        hard, miner = self.state.config.mining.hard, self.state.miner
        found = self.ranks.judged(self.buffers, self.sums)
        self._first = found.first
        budget[(1,)](
            found.sums, found.programs, found.n_samples, self.tau, self.control, self.found,
            miner.rate if miner else 0.0, hard.low, hard.high, SUMS=power_of_two(self._programs),
            HARD=miner is not None, num_warps=32,
        )  # fmt: skip

    def select(self) -> None:
        b, mining = self.buffers, self.state.config.mining
        if mining.policy == "hard" and mining.hard.draw != "poisson":
            choose_samples(b, mining.hard, Course(self.seed, self.step, self.control, self.found))
            return
        blocks = b.capacity // _BLOCK
        for write in (False, True):
            select[(blocks,)](
                b.size, b.n_samples, self._first, self.control, self.seed, self.step, b.block_count, b.n_chosen,
                b.index, b.weight, WRITE=write, STREAM=int(Stream.MINING), HARD=mining.policy == "hard",
                UNBIASED=mining.policy == "hard" and mining.hard.reweight == "unbiased",
                EVERY=mining.policy == "none", BLOCK=_BLOCK,
            )  # fmt: skip


def _whole_blocks(samples: float) -> int:
    """`samples`, rounded up to what `select` works in."""
    return -int(-samples // _BLOCK) * _BLOCK
