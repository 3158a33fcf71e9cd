"""Runs every Triton kernel on small and odd sizes, for a memory checker.

    export PYTHONPATH=src:tests PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck --error-exitcode 9 python -m support.sanitize [NAME ...]

Names choose among the kinds of training, `ops` being all ops; without any, everything runs, which takes six minutes.
The package nvidia-cuda-sanitizer-api-cu12 brings the tool. Without torch's caching allocator every tensor is an
allocation of its own, so that an access beyond its end is seen. The stages of a fused step run without a CUDA graph,
which could not be captured then. Prints one line for each op and for each kind of training.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Literal

import torch

from raymine.bench._op_cases import MAKERS
from raymine.bench._op_inputs import Sizes
from raymine.engines.fused.engine import FusedEngine
from raymine.engines.fused.trainer import FusedTrainer
from raymine.kernels import dispatch
from raymine.losses import ColourLoss, DistortionLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.step import TrainConfig, create_state
from support import fused

DEVICE = torch.device("cuda")
SAMPLES = (1, 63, 1000)


def run_ops() -> None:
    for op, makers in MAKERS.items():
        if "gpu" not in dispatch.BACKENDS[op]:
            continue
        calls = 0
        for samples in SAMPLES:
            for maker in makers:
                torch.manual_seed(samples)
                case = maker(Sizes(samples, 9, 16, DEVICE))
                with dispatch.force("gpu"):
                    case.prepare()()
                torch.cuda.synchronize()
                calls += 1
        print(f"{op}: {calls} calls", flush=True)


def configs() -> dict[str, TrainConfig]:
    """Every mining policy and way to draw, every shape of network, the terms of `unbounded`, a deterministic run."""
    base = fused.CONFIG
    policies: tuple[Literal["none", "prune"], ...] = ("none", "prune")
    found = {policy: replace(base, mining=MiningConfig(policy=policy)) for policy in policies}
    for draw, reweight in (
        ("systematic", "unbiased"),
        ("poisson", "unbiased"),
        ("multinomial", "unbiased"),
        ("topk", "none"),
    ):
        hard = HardConfig(draw=draw, reweight=reweight)  # type: ignore[arg-type]
        found[f"hard, {draw}"] = replace(base, mining=MiningConfig(policy="hard", hard=hard))
    for name, field in fused.SHAPES.items():
        found[name] = replace(base, field=field)
    loss = (ColourLoss(), DistortionLoss(0.2))
    decayed = replace(base.optimiser, level_decay=5e-3)
    found["distortion"] = replace(base, loss=loss, near_fade=4.0, optimiser=decayed)
    found["deterministic"] = replace(base, deterministic=True)
    return found


def run_training(config: TrainConfig, unbounded: bool) -> None:
    data = fused.data_on(DEVICE, unbounded)
    state = create_state(config, data, seed=3, device=DEVICE)
    state.horizon, state.rays = 100, 61
    engine = FusedEngine(state, data)
    trainer = engine.trainer
    assert isinstance(trainer, FusedTrainer)
    trainer.reload()
    trainer._set_schedule()
    for step in range(3):
        trainer.grid.update(trainer.model, step == 0)
        trainer.run_stages()
        torch.cuda.synchronize()
    state.sampler.swept = True
    rays = data.rig.rays_for_pixels(*(torch.arange(n, device=DEVICE) % 8 for n in (37, 37, 37)))
    engine.renderer().render(rays, torch.zeros(3, device=DEVICE))
    torch.cuda.synchronize()


def main(names: list[str]) -> None:
    known = configs()
    if unknown := set(names) - {"ops", *known}:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}. There is: ops, {', '.join(known)}.")
    if not names or "ops" in names:
        run_ops()
    for name, config in known.items():
        if names and name not in names:
            continue
        for unbounded in (False, True):
            run_training(config, unbounded)
        print(f"training, {name}: done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
