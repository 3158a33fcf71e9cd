"""Times steps of one engine: without ranks, with one rank through torch.distributed, and with two on one device.

    python benchmarks/bench_ranks.py SCENE [--recipe ngp] [--policy hard] [--engine plain] [--samples N]
        [--rounds 10] [--steps 20] [--device auto] [--downscale 1] [--without-two] [--out FILE]

All draw the same rays. The first two take turns in one process, so that other load on the machine meets both; the third
follows with as many rounds. Tensors of one rank go by NCCL on CUDA, else by gloo; those of two ranks on one device by
gloo. Prints one JSON row for each: the median and the range of the milliseconds per step over all rounds, and how the
median compares with that of no ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from raymine import recipes
from raymine.bench.rows import append_rows
from raymine.config import replace_fields, to_json
from raymine.engines import Engine, engine_for
from raymine.experiment import open_data
from raymine.experiment.prepare import resolve_device
from raymine.rundir import describe_environment
from raymine.scenes import load_scene
from raymine.step import TrainConfig, TrainData, create_state
from raymine.step.distributed.meeting import Place
from raymine.step.distributed.ranks import SOLO, Ranks, join, leave

WARM_UP = 40
"""Steps outside of the clock, in which kernels compile and the occupancy grid is updated for the first times."""


def made(config: TrainConfig, data: TrainData, device: torch.device, ranks: Ranks) -> Engine:
    """An engine that has taken its first steps."""
    state = create_state(config, data, seed=0, device=device, ranks=ranks)
    state.horizon = 20_000
    engine = engine_for(state, data)
    engine.warm_up()
    advance(engine, WARM_UP, device)
    return engine


def advance(engine: Engine, steps: int, device: torch.device) -> float:
    """Milliseconds per step."""
    began, left = time.perf_counter(), steps
    while left:
        left -= len(engine.advance(left))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / steps


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def joined(rank: int, world: int, port: int, device: torch.device) -> Ranks:
    """The ranks of this machine; tensors of one on a GPU go by NCCL."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return join(Place(rank, world, rank, world), device, 120.0)


def report(options: argparse.Namespace, config: TrainConfig, case: str, ranks: Ranks, timed: Sequence[float]) -> None:
    """Print a row, and append it to the file of rows. `options.alone`: the median without ranks, in milliseconds."""
    row = {
        "benchmark": "ranks", "case": case, "backend": ranks.backend, "scene": Path(options.scene).name,
        "recipe": options.recipe, "engine": config.engine, "policy": config.mining.policy,
        "samples": config.batch.samples,
        "downscale": options.downscale, "rounds": options.rounds, "steps": options.steps,
        "step_ms": statistics.median(timed), "least_ms": min(timed), "most_ms": max(timed),
        "against_alone": statistics.median(timed) / options.alone,
        "environment": describe_environment(resolve_device(options.device)),
    }  # fmt: skip
    print(json.dumps(to_json(row)), flush=True)
    append_rows(options.out, [row])


def time_one(options: argparse.Namespace, config: TrainConfig, data: TrainData, device: torch.device) -> None:
    """Steps without ranks and with one rank, in turns."""
    ranks = joined(0, 1, free_port(), device)
    alone, one = made(config, data, device, SOLO), made(config, data, device, ranks)
    timed: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.rounds):
        for engine, found in zip((alone, one), timed, strict=True):
            found.append(advance(engine, options.steps, device))
    options.alone = statistics.median(timed[0])
    report(options, config, "no ranks", SOLO, timed[0])
    report(options, config, "one rank", ranks, timed[1])
    leave()


def time_two(options: argparse.Namespace, config: TrainConfig, data: TrainData, device: torch.device) -> None:
    """Steps of one of two ranks on one device; rank 0 reports."""
    ranks = joined(options.rank, 2, options.port, device)
    engine = made(config, data, device, ranks)
    timed = [advance(engine, options.steps, device) for _ in range(options.rounds)]
    if ranks.leads:
        report(options, config, "two ranks", ranks, timed)
    leave()


def start_two(options: argparse.Namespace) -> None:
    """Run this script once for each of two ranks, which share the cores."""
    port, threads = free_port(), str(max(1, torch.get_num_threads() // 2))
    more = ["--port", str(port), "--alone", str(options.alone)]
    children = [
        subprocess.Popen(
            [sys.executable, *sys.argv, *more, "--rank", str(rank)], env={**os.environ, "OMP_NUM_THREADS": threads}
        )
        for rank in range(2)
    ]
    if sum(abs(child.wait()) for child in children):
        sys.exit("error: a rank failed.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("--recipe", default="ngp")
    parser.add_argument("--policy", default="hard")
    parser.add_argument("--engine", choices=("plain", "fused"), default="plain")
    parser.add_argument("--samples", type=int, default=None, help="of a step, of all ranks; else as the recipe says")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    parser.add_argument("--without-two", action="store_true", help="leave out the two ranks on one device")
    for name, kind in (("--rank", int), ("--port", int), ("--alone", float)):
        parser.add_argument(name, type=kind, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = resolve_device(options.device)
    scene = load_scene(options.scene, downscale=options.downscale)
    changes = {"engine": options.engine, "mining.policy": options.policy}
    if options.samples is not None:
        changes |= {"batch.samples": options.samples, "batch.max_rays": options.samples // 4}
    config = replace_fields(recipes.build(options.recipe, scene, device.type), changes)
    with open_data(scene, scene.of_split("train"), device, None) as seen:
        (time_one if options.rank is None else time_two)(options, config, seen.train, device)
    if options.rank is None and not options.without_two:
        start_two(options)


if __name__ == "__main__":
    main()
