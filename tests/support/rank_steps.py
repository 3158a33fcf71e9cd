"""Trains small models for some steps, by one process or by several that share the rays of each step.

Run as: python -m support.rank_steps FOLDER WORLD RANK [STEPS], once for each rank. Rank 0 writes what it saw of every
case to FOLDER/WORLD.pt. STEPS: of every case, instead of its own number.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from raymine import recipes
from raymine.contracts import StepReport
from raymine.engines import engine_for
from raymine.fields import HashFieldConfig
from raymine.fields.density_grid import DensityGridConfig
from raymine.fields.mlp_field import MlpFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.losses import ColourLoss, FreeSpaceLoss, InterlevelLoss
from raymine.losses.depth import DepthLoss
from raymine.losses.mask import MaskLoss
from raymine.losses.opacity import OpacityLoss
from raymine.mining import MiningConfig
from raymine.mining.config import HardConfig
from raymine.pixels import PixelConfig
from raymine.rays import CameraRig
from raymine.samplers.hierarchical import HierarchicalConfig
from raymine.samplers.proposal import ProposalConfig
from raymine.step import TrainConfig, TrainData, TrainState, create_state
from raymine.step.distributed.meeting import Place
from raymine.step.distributed.ranks import SOLO, Ranks, join, leave
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from raymine.step.schedule import FadeConfig, ProgressiveConfig
from support.listening import free_port
from support.moving_scene import moving_data, moving_scene
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
OPEN = replace(SCENE, bounds=replace(SCENE.bounds, levels=3, near=0.5, far=8.0))
"""The ball in a space without an end."""
MOVING = moving_scene()
HORIZON = 100
"""Steps of a whole run: small images end at steps 15 and 40, and levels fade in until step 30."""


@dataclass
class Seen:
    """What a case showed: reports of all steps, gradients and chosen samples of the first, tensors after the last."""

    reports: list[StepReport]
    gradients: dict[str, Tensor]
    chosen: Tensor
    tensors: dict[str, Tensor]


class _Depths:
    """Depths (`step.data.DepthSource`) of pixels in even columns, so that ranks have different numbers of them."""

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return torch.where(x % 2 == 0, 3.0, 0.0)


def _with(policy: str, config: TrainConfig = CONFIG, **fields: object) -> TrainConfig:
    return replace(config, mining=MiningConfig(policy=policy), **fields)  # type: ignore[arg-type]


def _mined_by(policy: str, make: Callable[[], TrainConfig]) -> TrainConfig:
    return _with(policy, make())


def _drawn_by(draw: str, reweight: str = "none") -> TrainConfig:
    return replace(CONFIG, mining=MiningConfig(hard=HardConfig(draw, reweight)))  # type: ignore[arg-type]


def _proposal() -> TrainConfig:
    config = recipes.build("proposal", SCENE, "cpu")
    network = DensityGridConfig(GridSpec(levels=3, features=2, log2_entries=10, base=8, finest=32), width=8)
    sampler = ProposalConfig((network,) * 2, (24, 16), 12, anneal_steps=30, every=3, every_step_until=15)
    field = HashFieldConfig(GridSpec(levels=4, features=2, log2_entries=12, base=8, finest=64), width=16)
    config = replace(config, field=field, sampler=sampler, batch=replace(config.batch, samples=1 << 11))
    return replace(config, loss=(ColourLoss("l2"), InterlevelLoss()))


def _vanilla() -> TrainConfig:
    config, network = recipes.build("vanilla", SCENE, "cpu"), MlpFieldConfig(3, 32, skip=2, position_frequencies=4)
    sampler = HierarchicalConfig(network, coarse=16, fine=16)
    return replace(config, field=network, sampler=sampler, batch=replace(config.batch, samples=1 << 11))


def _voxels() -> TrainConfig:
    config = recipes.build("voxels", SCENE, "cpu")
    field = replace(config.field, resolutions=(12, 24), grow_at=(5,), rows=1 << 14, variation_rows=256)  # type: ignore[type-var]
    sampler = replace(config.sampler, resolution=16, step=0.05)  # type: ignore[type-var]
    return replace(config, field=field, sampler=sampler, batch=replace(config.batch, samples=1 << 11))


def _planes() -> TrainConfig:
    config = recipes.build("planes", SCENE, "cpu")
    field = replace(config.field, resolutions=(12, 24), features=8, width=16)  # type: ignore[type-var]
    sampler = replace(config.sampler, resolution=16, step=0.05)  # type: ignore[type-var]
    return replace(config, field=field, sampler=sampler, batch=replace(config.batch, samples=1 << 11))


def _vanilla_grid() -> TrainConfig:
    config, network = recipes.build("vanilla-grid", SCENE, "cpu"), MlpFieldConfig(3, 32, skip=2, position_frequencies=4)
    network = replace(network, density=config.field.density)  # type: ignore[attr-defined]
    sampler = replace(config.sampler, resolution=16, step=0.05, every=4, full_steps=8, cells=1 << 10)  # type: ignore[type-var]
    return replace(config, field=network, sampler=sampler, batch=replace(config.batch, samples=1 << 11))


def _unbounded() -> TrainConfig:
    """Few photos, so with the penalty on density in front of cameras."""
    config = recipes.build("unbounded", OPEN, "cpu")
    assert any(isinstance(term, FreeSpaceLoss) for term in config.loss)
    sampler = replace(config.sampler, resolution=16, step=0.1, cone=0.1, every=4, full_steps=8, cells=1 << 10)  # type: ignore[type-var]
    return replace(config, field=CONFIG.field, sampler=sampler, batch=replace(config.batch, samples=1 << 11))


def _dynamic() -> TrainConfig:
    config = recipes.build("dynamic", MOVING, "cpu")
    field = replace(config.field, grid=GridSpec(levels=4, features=4, log2_entries=10, base=8, finest=32), width=16)  # type: ignore[type-var]
    sampler = replace(config.sampler, resolution=16, step=0.05, every=4, full_steps=8, cells=1 << 10)  # type: ignore[type-var]
    return replace(config, field=field, sampler=sampler, batch=replace(config.batch, samples=1 << 11))


KINDS: dict[str, Callable[[], TrainConfig]] = {
    "ngp": lambda: CONFIG,
    "unbounded": _unbounded,
    "proposal": _proposal,
    "planes": _planes,
    "voxels": _voxels,
    "vanilla": _vanilla,
    "vanilla-grid": _vanilla_grid,
    "dynamic": _dynamic,
    "progressive": lambda: replace(CONFIG, progressive=ProgressiveConfig()),
    "coarse-to-fine": lambda: replace(CONFIG, fade=FadeConfig()),
}
"""The kinds of models, by recipe or by what changes in the course of their runs."""

CASES: dict[str, tuple[Callable[[], TrainConfig], int]] = {
    **{kind: (partial(_mined_by, "none", make), 50) for kind, make in KINDS.items()},
    **{f"{kind}, hard": (partial(_mined_by, "hard", make), 2) for kind, make in KINDS.items()},
    "prune": (lambda: _with("prune"), 10),
    "multinomial": (lambda: _drawn_by("multinomial", "unbiased"), 2),
    "poisson": (lambda: _drawn_by("poisson", "unbiased"), 2),
    "topk": (lambda: _drawn_by("topk"), 2),
    "error pixels": (lambda: replace(CONFIG, pixels=PixelConfig("error+edges", refresh=4)), 10),
    "edge pixels": (lambda: replace(CONFIG, pixels=PixelConfig("edges", reweight=False)), 2),
    "poses": (lambda: _with("prune", poses=PoseConfig(), exposure=ExposureConfig()), 5),
    "terms": (lambda: _with("hard", loss=(ColourLoss(), MaskLoss(), OpacityLoss(), DepthLoss())), 5),
}
"""Configs and numbers of steps, by name: every kind of model under `none` and `hard`, then what ngp can add."""


def data_of(name: str) -> TrainData:
    """What a case is trained on."""
    kind = name.removesuffix(", hard")
    if kind == "unbounded":
        return replace(DATA, rig=CameraRig(OPEN, range(len(OPEN.frames))), bounds=OPEN.bounds)
    if kind == "dynamic":
        return moving_data(MOVING)
    return replace(DATA, depths=_Depths()) if name == "terms" else DATA


def watched(state: TrainState, data: TrainData, steps: int) -> Seen:
    """Train, and note the gradients of the first step as the optimiser gets them."""
    gradients: dict[str, Tensor] = {}
    chosen: list[Tensor] = []
    update = state.optimiser.step

    def step(rate: float, gate: Tensor, factors: Mapping[str, float]) -> None:
        for name, parameter in state.optimiser.parameters.items():
            if not steps_done and parameter.grad is not None:
                gradients[name] = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad.clone()
        update(rate, gate, factors)

    steps_done: list[StepReport] = []
    state.optimiser.step = step  # type: ignore[method-assign]
    if state.miner is not None:
        choose = state.miner.choose_by_size

        def noted(*args: Tensor, **options: int) -> object:
            found = choose(*args, **options)  # type: ignore[arg-type]
            chosen.append(found.index)
            return found

        state.miner.choose_by_size = noted  # type: ignore[method-assign, assignment]
    engine = engine_for(state, data)
    while len(steps_done) < steps:
        steps_done += engine.advance(1)
    own = {name: value.detach().clone() for name, value in state.tensors().items()}
    return Seen(steps_done, gradients, chosen[0] if chosen else torch.zeros(0), own)


def run_cases(ranks: Ranks, steps: int | None = None) -> dict[str, Seen]:
    """Every case, and whether all ranks ended with the same bits. steps: instead of those of the cases."""
    found = {}
    for name, (config, own) in CASES.items():
        data = data_of(name)
        state = create_state(config(), data, seed=0, device=CPU, ranks=ranks)
        state.horizon = HORIZON
        found[name] = watched(state, data, steps or own)
        if ranks.active:
            sums = [value.double().sum().item() for _, value in sorted(found[name].tensors.items())]
            digests = ranks.numbers([hash(tuple(sums))])
            assert all(each == digests[0] for each in digests), name
    return found


def _be(rank: int, world: int, folder: Path, steps: int | None) -> None:
    torch.set_num_threads(1)
    ranks = join(Place(rank, world, rank, world), CPU, 60.0) if world > 1 else SOLO
    found = run_cases(ranks, steps)
    if rank == 0:
        torch.save(found, folder / f"{world}.pt")
    if ranks.active:
        leave()


def launch(folder: Path, world: int, program: str = "support.rank_steps", steps: int | None = None) -> dict[str, Seen]:
    """What rank 0 of `world` processes saw. program: takes FOLDER, WORLD and RANK, as this one does, and STEPS if given
    here."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    shared["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", program, str(folder), str(world)]
    more = [] if steps is None else [str(steps)]
    children = [
        subprocess.Popen([*command, str(rank), *more], env={**os.environ, **shared, "OMP_NUM_THREADS": "1"})
        for rank in range(world)
    ]
    try:
        assert [child.wait(timeout=1500) for child in children] == [0] * world
    finally:
        for child in children:
            child.kill()
            child.wait()
    found: dict[str, Seen] = torch.load(folder / f"{world}.pt", weights_only=False)
    return found


if __name__ == "__main__":
    # Records must be pickled under the name that the tests import them by, not as those of `__main__`.
    from support import rank_steps

    given = int(sys.argv[4]) if len(sys.argv) > 4 else None
    rank_steps._be(int(sys.argv[3]), int(sys.argv[2]), Path(sys.argv[1]), given)
