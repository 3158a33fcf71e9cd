"""Made-up runs and documents of the mining benchmark, without training."""

from __future__ import annotations

import torch

from raymine.bench.derive import SHARES, summarise_policies
from raymine.bench.records import BenchRun, Document, Look, RayDetail, Setting, Shapes, StepMemory, StepTime, Trace
from raymine.config import to_json
from raymine.mining.diagnose import Diagnosis, Histogram, Picked
from raymine.rundir import describe_environment
from support.step import CONFIG

CPU = torch.device("cpu")


def diagnosis() -> Diagnosis:
    bars = Histogram((1e-6, 1e-3, 1.0), (3, 4), 1, 0)
    return Diagnosis(100, 40, 0.4, 0.9, 2.0, 3.0, 25.0, 0.5, Picked(50, 1), Picked(40, 38), Picked(10, 1), bars, bars)


def made_up_run(policy: str, seed: int, psnr: list[float], budget: float = 8.0, loss: float = 1.0) -> BenchRun:
    """A run whose evaluations ran exactly at their scheduled times."""
    looks = tuple(Look(s * budget, 10 * i, p, diagnosis()) for i, (s, p) in enumerate(zip(SHARES, psnr, strict=True)))
    steps = (10, 20, 30)
    trace = Trace(steps, (1.0, 4.0, budget), (10,) * 3, (loss,) * 3, (0.1,) * 3, (5.0,) * 3, (100.0,) * 3, (40.0,) * 3)
    memory = StepMemory(policy=250, none=1000, rays=5, marched=100, trained=40)
    ray = RayDetail((1.0, 2.0), (0.1, 0.5), (1e-3, 1e-2), (False, True))
    time = StepTime(2.0, 1.5, 2.5)
    return BenchRun(
        policy, seed, budget, 30, 0, time, 5.0, 0.4, 0.9, psnr[-1], 0.9, memory, looks, trace, ray, ((3, 30),)
    )


def made_up_document(runs: tuple[BenchRun, ...], seeds: int = 1) -> Document:
    names = tuple(dict.fromkeys(run.policy for run in runs))
    setting = Setting("/data/thing", "abc", "ngp", 1, 8.0, names, 3)
    return Document(
        setting,
        seeds,
        Shapes(5, 3, 16, 16, 1000, 2048),
        describe_environment(CPU),
        ("raymine", "bench"),
        "2026-01-01T00:00:00+00:00",
        True,
        {name: to_json(CONFIG) for name in names},
        runs,
        summarise_policies(runs, names, 8.0),
    )
