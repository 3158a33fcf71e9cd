"""Trains small models with the fused step, by one process or by several that share the rays of each step.

Run as: python -m support.fused_ranks FOLDER WORLD RANK, once for each rank. Rank 0 writes what it saw of every case to
FOLDER/WORLD.pt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from raymine.contracts import StepReport
from raymine.engines.fused.trainer import FusedTrainer
from raymine.mining import HardConfig, MiningConfig
from raymine.step import TrainConfig, create_state
from raymine.step.distributed.ranks import SOLO, Place, Ranks, join, leave
from support.fused import CONFIG, DEVICE, data_on

STEPS = 3
SMALL = replace(CONFIG, sampler=replace(CONFIG.sampler, resolution=8, step=0.12))  # type: ignore[type-var]
CASES: dict[str, Callable[[], TrainConfig]] = {
    "hard": lambda: SMALL,
    "prune": lambda: replace(SMALL, mining=MiningConfig("prune")),
    "deterministic, biased": lambda: replace(
        SMALL, mining=MiningConfig(hard=HardConfig(draw="poisson", reweight="none")), deterministic=True
    ),
}


@dataclass
class Seen:
    """What a case showed: reports of all steps, the chosen samples of the first, tensors after the last.

    chosen: indices among the samples of all ranks, in order.
    """

    reports: list[StepReport]
    chosen: list[int]
    tensors: dict[str, Tensor]


def run_case(config: TrainConfig, ranks: Ranks) -> Seen:
    """Train some steps, as one of the ranks."""
    data = data_on(DEVICE)
    state = create_state(config, data, seed=3, device=DEVICE, ranks=ranks)
    state.rays, state.horizon = 13, 100
    trainer = FusedTrainer(state, data)
    chosen: list[int] = []
    train = trainer.train

    def noted() -> None:
        if not chosen:
            b = trainer.buffers
            own = b.index[: int(b.n_chosen)] + (int(trainer._first) if ranks.active else 0)
            chosen.extend(int(i) for i in ranks.rows(own.long())[0])
        train()

    trainer.train = noted  # type: ignore[method-assign]
    reports = [trainer.advance(1)[0]]
    while len(reports) < STEPS:
        reports += trainer.advance(min(2, STEPS - len(reports)))
    return Seen(reports, chosen, {name: value.detach().cpu().clone() for name, value in state.tensors().items()})


def run_cases(ranks: Ranks) -> dict[str, Seen]:
    """Every case; all ranks must end with the same bits."""
    found = {}
    for name, config in CASES.items():
        found[name] = run_case(config(), ranks)
        sums = [value.double().sum().item() for _, value in sorted(found[name].tensors.items())]
        digests = ranks.numbers([hash(tuple(sums))])
        assert all(each == digests[0] for each in digests), name
    return found


def _be(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    # As many local ranks as there can be: on a GPU they share it, and talk by gloo.
    ranks = join(Place(rank, world, rank, world), DEVICE, 300.0) if world > 1 else SOLO
    found = run_cases(ranks)
    if rank == 0:
        torch.save(found, folder / f"{world}.pt")
    if ranks.active:
        leave()


if __name__ == "__main__":
    # Records must be pickled under the name that the tests import them by, not as those of `__main__`.
    from support import fused_ranks

    fused_ranks._be(int(sys.argv[3]), int(sys.argv[2]), Path(sys.argv[1]))
