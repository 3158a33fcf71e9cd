"""Trains with 1, 2 and 3 threads and compares the bits. A process of its own, because the tests use one thread each.

Run as: python -m support.threads FOLDER, with NUMBA_NUM_THREADS=3 and MKL_CBWR=AUTO,STRICT. Prints a line for each
comparison and exits with 1 if bits differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raymine import checkpoint, recipes
from raymine.experiment import TrainRequest, train
from raymine.kernels.threads import using_threads
from raymine.mining import HardConfig
from raymine.samplers.occupancy import OccupancyConfig
from raymine.step import TrainConfig, create_state, train_step
from support.disc_scene import write_scene
from support.runs import StopAt
from support.scenes import ball_scene

COUNTS = (1, 2, 3)
STEPS = 10
"""By then a step has 2^15 samples, which torch divides among threads, and the occupancy grid has been updated."""
CPU = torch.device("cpu")
SMALL = {"sampler.resolution": 40, "sampler.every": 8}


class OpsOnSeveralThreads(TorchDispatchMode):
    """Runs each torch function of large inputs with every number of threads, and lists those whose results differ."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: set[str] = set()
        self.differing: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        large = any(isinstance(part, Tensor) and part.numel() >= 1 << 15 for part in args)
        if large and not func._schema.is_mutable and "empty" not in str(func):
            results = []
            for count in (*COUNTS, 7):
                torch.set_num_threads(count)
                results.append(func(*args, **kwargs))
            torch.set_num_threads(COUNTS[-1])
            self.compared.add(str(func))
            if not all(_equal(results[0], other) for other in results[1:]):
                self.differing.add(str(func))
        return func(*args, **kwargs)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.layout != torch.strided or torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, tuple | list):
        return all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def configs() -> Iterator[tuple[str, TrainConfig]]:
    """Every mining policy and way to draw, and both ways to draw pixels."""
    scene, _ = ball_scene()
    ngp = recipes.build("ngp", scene, "cpu")
    assert isinstance(ngp.sampler, OccupancyConfig)
    ngp = replace(ngp, sampler=replace(ngp.sampler, resolution=40, every=8))
    for policy in ("none", "prune"):
        yield policy, replace(ngp, mining=replace(ngp.mining, policy=policy))
    yield (
        "none, pixels by error",
        replace(ngp, mining=replace(ngp.mining, policy="none"), pixels=replace(ngp.pixels, policy="error")),
    )
    for draw, reweight in (
        ("systematic", "unbiased"),
        ("poisson", "unbiased"),
        ("multinomial", "none"),
        ("topk", "none"),
    ):
        hard = HardConfig(draw=draw, reweight=reweight)
        yield f"hard, {draw}", replace(ngp, mining=replace(ngp.mining, policy="hard", hard=hard))
    yield "vanilla", recipes.build("vanilla", scene, "cpu")


def trained(config: TrainConfig, threads: int, steps: int) -> dict[str, Tensor]:
    """The tensors of a state after some steps, and the losses of all steps."""
    _, data = ball_scene()
    with using_threads(threads):
        state = create_state(config, data, seed=0, device=CPU)
        state.horizon = STEPS
        losses = torch.tensor([train_step(state, data).loss for _ in range(steps)])
        return {"losses": losses, **{name: value.clone() for name, value in state.tensors().items()}}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def compare_steps() -> Iterator[tuple[str, bool]]:
    for name, config in configs():
        steps = 1 if name == "vanilla" else STEPS
        runs = [trained(config, count, steps) for count in COUNTS]
        yield f"{name}: {steps} steps with {COUNTS} threads", all(same(runs[0], run) for run in runs[1:])


def compare_ops() -> Iterator[tuple[str, bool]]:
    _, data = ball_scene()
    for name, config in configs():
        if name not in ("none", "hard, systematic", "vanilla"):
            continue
        ops = OpsOnSeveralThreads()
        state = create_state(config, data, seed=0, device=CPU)
        with ops:
            for _ in range(1 if name == "vanilla" else STEPS):
                train_step(state, data)
        yield f"{name}: {len(ops.compared)} torch functions, differing: {sorted(ops.differing)}", not ops.differing


def compare_resumed(folder: Path) -> Iterator[tuple[str, bool]]:
    """A run stopped with 2 threads and resumed where there are 1 or 3 equals one that was never stopped."""
    scene = write_scene(folder / "scene")

    def asked(out: str, **changes: Any) -> TrainRequest:
        return TrainRequest(
            scene, out=folder / out, steps=16, device="cpu", evaluate_views=1, overrides=SMALL, **changes
        )

    def model(out: str) -> dict[str, Tensor]:
        found = checkpoint.load_latest(folder / out / "checkpoints")
        assert found is not None
        return found.checkpoint.tensors

    train(asked("whole", threads=2))
    for here in (1, 3):
        out = f"resumed-{here}"
        train(asked(out, threads=2), observer=StopAt(8))
        with using_threads(here):
            train(asked(out, resume=True))
            kept = torch.get_num_threads() == here
        yield f"resumed where {here} threads are usual", kept and same(model("whole"), model(out))


def main() -> None:
    assert COUNTS[-1] == numba.config.NUMBA_NUM_THREADS
    failed = False
    for part in (compare_ops(), compare_steps(), compare_resumed(Path(sys.argv[1]))):
        for line, equal in part:
            failed |= not equal
            print("equal" if equal else "DIFFERENT", line, flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
