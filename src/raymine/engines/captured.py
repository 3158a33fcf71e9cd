"""The captured engine: any field on CUDA as plain torch inside one CUDA graph, so that no launch waits for the host.

Drawing, marching, judging and choosing are the kernels of the fused step. The field is evaluated by its own `forward`
on buffers of a fixed size, whose unused places count for nothing, and is differentiated by autograd. A graph wants
fixed shapes: the sampler is the occupancy grid, the loss is what `judge` knows, with terms over parameters beside it,
and neither `forward` nor these terms may read numbers back from the device.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
import triton
from torch import Tensor

from raymine.contracts import Draws, FieldInput, Renderer, StepReport
from raymine.engines.fused.graph import GraphTrainer
from raymine.errors import ConfigError
from raymine.kernels.adam.gpu import adam, row_of
from raymine.kernels.ngp_step.gpu_control import conclude
from raymine.step import TrainConfig, TrainData, TrainState
from raymine.step.objective import parameter_loss
from raymine.step.optimiser import LevelPenalties
from raymine.step.poses import PoseConfig, move_poses
from raymine.step.precision import field_for_occupancy, fields_for_step

_log = logging.getLogger(__name__)

_BLOCK = 1024
_SPARE = 1.4
"""Room for chosen samples, over the largest share of the marched ones that was chosen in one of the last steps."""
_LARGE = 1 << 19
"""Samples of a step above which the device is busy without a graph, if all that is visible is trained on: with 2^20 the
captured step takes 7.9 ms against 5.2 (`prune`) and 13.3 against 7.6 (`none`), with 2^18 2.5 against 4.6 and 3.8
against 3.7; with `hard` it takes 4.5 against 5.0 and 1.6 against 4.8 (H200)."""


def worth_capturing(config: TrainConfig) -> bool:
    """Whether a graph makes a step quicker: where it waits for launches."""
    return config.mining.policy == "hard" or config.batch.samples <= _LARGE


class NotCapturableError(ConfigError):
    """A field whose `forward` cannot be part of a CUDA graph."""


class CapturedTrainer(GraphTrainer):
    """Trains any field. `_places`: how many chosen samples the second pass has room for.

    While poses are refined, the cameras of a step are placed by the twists before its rays are drawn, so that all but
    the second pass sees moved rays. There the chosen samples get a graph to the twists (`_with_graph`).
    """

    room = 1.25
    fades = True

    def __init__(self, state: TrainState, data: TrainData, *, refining: bool = False) -> None:
        """refining: whether poses are refined while this trains; it is not used before or after that."""
        self._poses = state.poses if refining else None
        self._given = data.rig.poses.float()
        self._fields = fields_for_step(state.config, state.field)
        super().__init__(state, data, self._fields.loss_scale)
        device, optimiser = state.device, state.optimiser
        # Where twists are constants, an update with a gradient of 0 would still move them by their momentum.
        trained = [name for name in optimiser.parameters if refining or not name.startswith("poses.")]
        self._blocks = optimiser.blocks_of([name for name in trained if not optimiser.group_of(name).sparse])
        self._sparse = [name for name in trained if optimiser.group_of(name).sparse]
        # Rates of a group, over those of one whose factors are 1 (`adam.gpu`: 2 is the rate, 7 the rate times decay).
        self._factors = {
            name: torch.tensor([1.0, 1.0, group.rate, 1.0, 1.0, 1.0, 1.0, group.rate * group.decay], device=device)
            for name in trained
            for group in (optimiser.group_of(name),)
        }
        self._is_rate = torch.arange(8, device=device) == 2
        share = state.config.mining.hard.high if state.miner is not None else 1.0
        self._places = self._rounded(share * self.buffers.capacity)
        self._capturable, self._tried = True, False
        self.reload()

    def refresh(self) -> None:
        """Nothing to do: the field is evaluated as it is."""

    def _rounded(self, samples: float) -> int:
        return min(self.buffers.capacity, _BLOCK * math.ceil(samples / _BLOCK))

    def advance(self, steps: int) -> list[StepReport]:
        """As `GraphTrainer.advance`. The room of the second pass follows the number of samples that are chosen."""
        reports = super().advance(steps)
        places, capacity = self._places, self.buffers.capacity
        share = max(report.trained / max(1, report.marched) for report in reports)
        if any(report.trained > places for report in reports):
            _log.warning("The second pass had no room for some of the chosen samples; it has more now.")
            self._places = self._rounded(capacity)
        elif _SPARE**2 * share * capacity < places:
            self._places = self._rounded(max(_SPARE * share * capacity, 8 * _BLOCK))
        if self._places != places:
            self._drop_step()
        # Sizes of corrections are known after the last of these steps alone.
        moved = {} if self._poses is None else {name: float(size) for name, size in self._poses.numbers().items()}
        return [
            replace(report, trained=min(report.trained, places), extra={**report.extra, **moved}) for report in reports
        ]

    def _replay(self, name: str, work: Callable[[], None]) -> None:
        """As `GraphTrainer._replay`, without a graph if the field's `forward` cannot be part of one.

        The first run compiles what must be compiled; the second raises where anything waits for the device, which a
        graph cannot; the third is captured. An attempt to capture such a field would leave CUDA's generator unusable.
        """
        if self._capturable and name in self._ran and name not in self._graphs and not self._tried:
            self._tried = True
            self._capturable = self._runs_without_waiting(work)
        elif self._capturable:
            super()._replay(name, work)
        else:
            work()

    def _runs_without_waiting(self, work: Callable[[], None]) -> bool:
        """Run `work`; False if it had to wait for the device. A step that stops half-way has changed no parameter."""
        mode = torch.cuda.get_sync_debug_mode() if self.state.device.type == "cuda" else 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the mode a prototype
                _set_sync_mode(self.state.device, "error")
            work()
        except RuntimeError as error:
            _log.warning("The step is not captured in a CUDA graph: %s", str(error).splitlines()[0])
            _set_sync_mode(self.state.device, mode)
            self.state.optimiser.clear()
            work()
            return False
        finally:
            _set_sync_mode(self.state.device, mode)
        return True

    def update_cells(self, step: int, everything: bool) -> None:
        """The sampler's own update, outside of the graph: which cells are visited is for the host to know."""
        state = self.state
        field = field_for_occupancy(state.config, state.field)
        self.sampler.before_step(field, Draws(state.seed, step, state.device), self.data.times)
        self.grid.refresh()

    def draw(self) -> None:
        """As `GraphTrainer.draw`, with the cameras where their twists have brought them."""
        if self._poses is not None:
            with torch.no_grad():
                moved = move_poses(self._given, self._poses.motions())
                self.rays.images.rig[: moved[0].numel()].copy_(moved.flatten(1).t())
        super().draw()

    @torch.no_grad()
    def ask_field(self) -> None:
        b = self.buffers
        output = self._fields.inference.forward(self._query(b.ray_id, b.t_start, b.t_end))
        b.raw[:, :3].copy_(output.colour)
        b.raw[:, 3].copy_(output.density)
        b.seen.copy_(b.count)

    def _query(self, ray_id: Tensor, t_start: Tensor, t_end: Tensor) -> FieldInput:
        rays = self.buffers.rays.index_select(0, ray_id)
        directions = rays[:, 3:6].contiguous()
        positions = torch.addcmul(rays[:, :3], directions, (t_start + t_end)[:, None], value=0.5)
        time = self.buffers.wanted[:, 7].index_select(0, ray_id) if self.data.rig.dynamic else None
        return FieldInput(positions, directions, time)

    def _with_graph(self, query: FieldInput, ray_id: Tensor) -> FieldInput:
        """The same points, of rays `ray_id` [n] that twists have moved, with a graph to these twists.

        With motions (R, t) of the values that R and t have now (R0, t0), a ray that was moved by them, (o, d), is
        (o + t - t0, R R0^T d): the same ray, with the derivatives of the motion of the unmoved one.
        """
        if self._poses is None:
            return query
        motion = self._poses.motions()
        now = motion.detach()
        turn = motion[:, :, :3] @ now[:, :, :3].transpose(1, 2)
        image = self.buffers.image.index_select(0, ray_id)
        # Positions are o + x d: their distance x along the ray is a constant.
        own = torch.cat((turn.flatten(1), motion[:, :, 3] - now[:, :, 3]), 1).index_select(0, image)
        origins = self.buffers.rays[:, :3].index_select(0, ray_id)
        turned = own[:, :9].view(-1, 3, 3)
        directions = (turned * query.directions[:, None, :]).sum(2)
        along = (turned * (query.positions - origins)[:, None, :]).sum(2)
        return replace(query, positions=origins + own[:, 9:] + along, directions=directions)

    def train(self) -> None:
        b, places = self.buffers, self._places
        live = torch.arange(places, device=b.index.device) < b.n_chosen
        index = torch.where(live, b.index[:places], 0)
        ray_id = b.ray_id[index]
        query = self._with_graph(self._query(ray_id, b.t_start[index], b.t_end[index]), ray_id)
        weight = torch.where(live, b.weight[:places], 0.0) * self.scale
        # A place that is not used repeats sample 0, whose gradient may be anything.
        gradient = torch.where(live[:, None], b.gradient[index], 0.0) * weight[:, None]
        output = self._fields.training.forward(query)
        torch.autograd.backward((output.colour, output.density), (gradient[:, :3], gradient[:, 3]))
        value = parameter_loss(self.state, self.step[0])
        if value is not None:
            # The optimiser multiplies all gradients by control[1], one over the weight of the rays, and unscales them.
            (value * (self.scale / self.control[1])).backward()

    def add_up(self) -> None:
        """Nothing to do: one process trains the state (`engines.choice`)."""

    @torch.no_grad()
    def update(self) -> None:
        b, state, optimiser = self.buffers, self.state, self.state.optimiser
        batch, config = state.config.batch, state.config.optimiser
        factors = self._factors
        if self._poses is not None:
            factors = factors | {"poses.twist": factors["poses.twist"] * self._pose_rate(self._poses.config)}
        joined = [_joined_gradients(state, block.names) for block in self._blocks]
        tables = [_gradient(state, name) for name in self._sparse]
        whole = torch.cat([*joined, *(grad.sum().reshape(1) for grad in tables)])
        conclude[(1,)](
            whole, len(whole), self.schedule, self.control, self.found, self.n_rays, b.n_marched, b.n_chosen,
            b.n_lost, self.step, self.updates, self.rates, self.table_rates, self.rows, len(self.rows), batch.samples,
            batch.min_rays, batch.max_rays, BLOCK=1 << 14, num_warps=16,
        )  # fmt: skip
        for block, grad in zip(self._blocks, joined, strict=True):
            rates = self.rates * factors[block.names[0]]
            _launch_adam(block.values, grad, block.first, block.second, rates, sparse=False)
        for name, grad in zip(self._sparse, tables, strict=True):
            rates = self.table_rates * factors[name]
            first = optimiser.first.get(name) if config.table_beta1 > 0 else None
            values, penalties = optimiser.parameters[name].data, optimiser.penalties.get(name)
            _launch_adam(values, grad, first, optimiser.second[name], rates, sparse=True, penalties=penalties)
        if self._poses is not None:
            self._poses.clip()
        optimiser.clear()

    def _pose_rate(self, config: PoseConfig) -> Tensor:
        """[8] factors on the rates of poses in this step (`PoseConfig.rate_at`), without a wait for the device."""
        done = self.step[0] / (config.end * self.schedule[3]).clamp_min(1.0)
        return torch.where(self._is_rate, torch.exp(math.log(config.final) * (2 * done - 1).clamp(0, 1)), 1.0)


def _gradient(state: TrainState, name: str) -> Tensor:
    parameter = state.optimiser.parameters[name]
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise NotCapturableError("the gradient of the field is sparse, and a CUDA graph wants a fixed shape")
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _joined_gradients(state: TrainState, names: tuple[str, ...]) -> Tensor:
    return torch.cat([_gradient(state, name).reshape(-1) for name in names])


def _launch_adam(
    values: Tensor,
    grad: Tensor,
    first: Tensor | None,
    second: Tensor,
    rates: Tensor,
    *,
    sparse: bool,
    penalties: LevelPenalties | None = None,
) -> None:
    n = values.numel()
    adam[(triton.cdiv(n, _BLOCK),)](
        values, values, grad.contiguous(), second if first is None else first, second, rates,
        *(penalties or (rates, rates)), n, SPARSE=sparse, MOMENTUM=first is not None, FIXED=0.0, CLEAR=False,
        ROW=row_of(n), BLOCK=_BLOCK, LEVELS=len(penalties.factors) if penalties else 0, FEATURES=values[0].numel(),
    )  # fmt: skip


def _set_sync_mode(device: torch.device, mode: int | str) -> None:
    """What torch does where an operation waits for the device: nothing (0, the default), a warning or an error."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)


class CapturedEngine:
    """Advances a state by a captured graph of plain torch."""

    name = "captured"

    def __init__(self, state: TrainState, data: TrainData, reason: str, *, refining: bool = False) -> None:
        self.trainer = CapturedTrainer(state, data, refining=refining)
        self.reason = reason
        self._state = state

    @property
    def waited(self) -> float:
        return self.trainer.rays.waited

    def advance(self, steps: int) -> list[StepReport]:
        return self.trainer.advance(steps)

    def renderer(self) -> Renderer:
        from raymine.engines.choice import renderer_for

        return renderer_for(self._state)

    def warm_up(self) -> None:
        """See `Engine`. A few steps, of which the third is captured, and the first update of the grid."""
        with self.trainer.rehearsal():
            self.trainer.advance(3)
            self._state.step = self.trainer.sampler.config.first_update
            self.trainer.advance(1)
