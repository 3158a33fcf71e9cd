"""Each CPU kernel against its reference, as a ratio in one run. Prints one JSON row per op.

    python benchmarks/bench_kernels.py [--repeat 15]

A row: op, device, cores, commit, shapes, median and quartiles in milliseconds of both backends, and the ratio of
the medians. The backends take turns, so that a busy machine slows both alike; threads are set as by the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # before torch is imported

import torch

from raymine.kernels import dispatch
from raymine.kernels.composite.op import Packed, composite
from raymine.kernels.hash_grid.op import GridSpec, encode
from raymine.kernels.judge.op import Wanted, judge
from raymine.kernels.march.op import Spacing, march, pack
from raymine.kernels.ngp_step.op import HIDDEN, Box, Network, infer, train

Run = Callable[[], object]
BLOCK = 4


def hash_grid(points: int, spec: GridSpec) -> tuple[dict[str, object], Run]:
    """Forward and backward to the table."""
    x, table = torch.rand(points, 3), torch.randn(spec.total_entries, spec.features, requires_grad=True)
    grad = torch.randn(points, spec.width)

    def run() -> None:
        torch.autograd.grad(encode(x, table, spec), table, grad)

    return {"points": points, "levels": spec.levels, "features": spec.features, "entries": spec.total_entries}, run


def march_rays(rays: int) -> tuple[dict[str, object], Run]:
    """Rays from a sphere through a ball that fills a tenth of a 128^3 grid."""
    side = torch.linspace(-1.5, 1.5, 128)
    occupied = torch.stack(torch.meshgrid(side, side, side, indexing="ij")).norm(dim=0) < 0.9
    grid = pack(occupied[None], (-1.5,) * 3, (1.5,) * 3)
    origins = 4 * torch.nn.functional.normalize(torch.randn(rays, 3), dim=-1)
    directions = torch.nn.functional.normalize(torch.randn(rays, 3) * 0.7 - origins, dim=-1)
    near, far, jitter = torch.full((rays,), 0.05), torch.full((rays,), 1e3), torch.rand(rays)
    samples = len(march(origins, directions, near, far, grid, Spacing(0.01), jitter).t_start)
    shapes: dict[str, object] = {"rays": rays, "samples": samples, "grid": 128}
    return shapes, lambda: march(origins, directions, near, far, grid, Spacing(0.01), jitter)


def composite_rays(rays: int) -> tuple[dict[str, object], Run]:
    """Forward and backward of ragged rays."""
    count = torch.randint(0, 64, (rays,))
    n = int(count.sum())
    t = torch.rand(n) * 3
    packed = Packed(t, t + 0.01, count.cumsum(0) - count, count)
    leaves = [
        (torch.rand(n) * 30).requires_grad_(),
        torch.rand(n, 3).requires_grad_(),
        torch.rand(rays, 3).requires_grad_(),
    ]
    grad = torch.randn(rays, 3)

    def run() -> None:
        torch.autograd.grad(composite(leaves[0], leaves[1], packed, leaves[2]).colour, leaves, grad)

    return {"rays": rays, "samples": n}, run


def judge_rays(rays: int) -> tuple[dict[str, object], Run]:
    """Loss and gradient of every sample of ragged rays, from pre-activations."""
    count = torch.randint(0, 64, (rays,))
    n = int(count.sum())
    t = torch.rand(n) * 3
    packed = Packed(t, t + 0.01, count.cumsum(0) - count, count)
    wanted = Wanted(torch.rand(rays, 3), torch.rand(rays, 3), torch.ones(rays))
    colour, density = torch.randn(n, 3), torch.randn(n) * 3
    return {"rays": rays, "samples": n}, lambda: judge(colour, density, packed, wanted)


def field_rays(rays: int, chosen: int) -> tuple[dict[str, object], Run, Run]:
    """The first pass along rays of 32 samples, about half of them behind something, and the second over `chosen`."""
    spec = GridSpec(levels=8, features=4, log2_entries=16, finest=512)
    shapes = [(spec.width, 32), (32, 16), (32, 32), (32, 32), (32, 3)]
    weights = [torch.randn(shape) * 0.4 for shape in shapes]
    box = Box(torch.full((3,), -1.0), torch.full((3,), 1.0), False)
    network = Network(torch.randn(spec.total_entries, 4), spec, tuple(weights[:2]), tuple(weights[2:]), box)
    directions = torch.nn.functional.normalize(torch.randn(rays, 3), dim=-1)
    count = torch.full((rays,), 32)
    t = (torch.arange(32) / 32).repeat(rays)
    packed = Packed(t, t + 1 / 32, count.cumsum(0) - count, count)
    origins = torch.zeros(rays, 3)
    asked = int((infer(network, origins, directions, packed, 1e-4, 1e-3).density != HIDDEN).sum())
    positions, grads = torch.rand(chosen, 3) * 2 - 1, (torch.randn(chosen, 3), torch.randn(chosen))
    along = directions[torch.arange(chosen) % rays]
    return (
        {"rays": rays, "samples": len(t), "visible": asked, "chosen": chosen},
        lambda: infer(network, origins, directions, packed, 1e-4, 1e-3),
        lambda: train(network, positions, along, *grads),
    )


def measure(run: Run, repeat: int) -> dict[str, list[float]]:
    """Milliseconds of `repeat` runs per backend, in alternating blocks; the first run of a block does not count.

    That first run finds the caches full of the other backend's data and its threads still spinning.
    """
    times: dict[str, list[float]] = {"cpu": [], "reference": []}
    while len(times["cpu"]) < repeat:
        for backend, found in times.items():
            with dispatch.force(backend):  # type: ignore[arg-type]
                for i in range(BLOCK):
                    start = time.perf_counter()
                    run()
                    if i:
                        found.append((time.perf_counter() - start) * 1e3)
    return times


def machine() -> dict[str, object]:
    """Who measured: device, cores and commit."""
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = models[0].split(":")[1].strip() if models else platform.processor()
    return {"device": name, "cores": os.cpu_count(), "commit": commit.stdout.strip(), "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    repeat = parser.parse_args().repeat
    torch.manual_seed(0)
    shapes, first, second = field_rays(1024, 3000)
    cases = {
        "hash_grid 16x2 2^19": hash_grid(65_536, GridSpec()),
        "hash_grid 8x4 2^15": hash_grid(65_536, GridSpec(levels=8, features=4, log2_entries=15, finest=512)),
        "march, 1,024 rays": march_rays(1024),
        "march, 8,192 rays": march_rays(8192),
        "composite, 65 k samples": composite_rays(2048),
        "composite, 260 k samples": composite_rays(8192),
        "judge, 65 k samples": judge_rays(2048),
        "ngp_step infer, 32 k samples": (shapes, first),
        "ngp_step train, 3,000 samples": (shapes, second),
    }
    who = machine()
    for op, (shapes, run) in cases.items():
        row: dict[str, object] = {"op": op, **who, "shapes": shapes}
        medians = {}
        for backend, times in measure(run, repeat).items():
            quartiles = statistics.quantiles(times, n=4)
            medians[backend] = statistics.median(times)
            row[backend] = {"median_ms": round(medians[backend], 3), "quartiles_ms": [round(q, 3) for q in quartiles]}
        print(json.dumps({**row, "ratio": round(medians["reference"] / medians["cpu"], 2)}), flush=True)


if __name__ == "__main__":
    main()
