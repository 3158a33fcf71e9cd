"""Runs every Triton kernel on small and odd sizes, for a memory checker.

    export PYTHONPATH=src:tests PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck --error-exitcode 9 python -m support.sanitize

The package nvidia-cuda-sanitizer-api-cu12 brings the tool. Without torch's caching allocator every tensor is an
allocation of its own, so that an access beyond its end is seen. The stages of a fused step run without a CUDA graph,
which could not be captured then. Prints one line for each op and for each kind of training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from raymine.bench._op_cases import MAKERS, Sizes
from raymine.engines.fused.engine import FusedEngine
from raymine.engines.fused.trainer import FusedTrainer
from raymine.kernels import dispatch
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
    """Every mining policy and way to draw, every shape of network, and a deterministic run."""
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


def main() -> None:
    run_ops()
    for name, config in configs().items():
        for unbounded in (False, True):
            run_training(config, unbounded)
        print(f"training, {name}: done", flush=True)


if __name__ == "__main__":
    main()
