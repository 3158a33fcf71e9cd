"""Times what programs for nerfacc and tiny-cuda-nn call, through the drop-ins or through the originals.

    python benchmarks/bench_dropins.py [--log2 18 20] [--device cuda] [--original] [--out FILE]

The same calls on the same inputs either way, so that two runs on one machine can be laid side by side: hash grid and
fused network forward and backward, packed scans, sampling of an occupancy grid, and rendering. One JSON row a call:
device, shapes, median and quartiles of milliseconds as Python makes the call.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.bench.rows import append_rows
from raymine.rundir import describe_environment

BOX = [-1.5, -1.5, -1.5, 1.5, 1.5, 1.5]
GRID = {
    "otype": "HashGrid", "n_levels": 16, "n_features_per_level": 2, "log2_hashmap_size": 19, "base_resolution": 16,
    "per_level_scale": 1.4472692012786865,
}  # fmt: skip
NETWORK = {
    "otype": "FullyFusedMLP", "activation": "ReLU", "output_activation": "None", "n_neurons": 64, "n_hidden_layers": 2,
}  # fmt: skip


def calls(
    n: int, device: torch.device, nerfacc: Any, tcnn: Any
) -> Iterator[tuple[str, dict[str, int], Callable[[], Any]]]:
    """Name, shapes and the call itself."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device)

    points = random(n, 3)
    for name, module, inputs in (
        ("hash grid", tcnn.Encoding(3, GRID), points),
        ("network", tcnn.Network(32, 16, NETWORK), random(n, 32)),
        ("grid and network", tcnn.NetworkWithInputEncoding(3, 16, GRID, NETWORK), points),
    ):
        module = module.to(device)
        grad = torch.ones_like(module(inputs[:1])).expand(n, -1).contiguous() * 1e-3
        out = module(inputs)
        yield f"{name}, forward", {"samples": n}, partial(module, inputs)
        yield (
            f"{name}, backward",
            {"samples": n},
            partial(torch.autograd.grad, out, module.params, grad, retain_graph=True),
        )

    rays = n // 32
    ray_indices = (torch.arange(n, device=device) // 32).clamp_max(rays - 1)
    t_starts = random(n).sort().values
    t_ends, sigmas, colours = t_starts + 0.01, (random(n) * 20).requires_grad_(), random(n, 3).requires_grad_()
    packed = nerfacc.pack_info(ray_indices, rays)
    shapes = {"samples": n, "rays": rays}
    yield "inclusive_sum", shapes, lambda: nerfacc.inclusive_sum(sigmas.detach(), packed_info=packed)
    yield "exclusive_prod", shapes, lambda: nerfacc.exclusive_prod(sigmas.detach(), packed_info=packed)

    def rendered() -> Tensor:
        return nerfacc.rendering(t_starts, t_ends, ray_indices, rays, rgb_sigma_fn=lambda *_: (colours, sigmas))[0]

    yield "rendering, forward", shapes, rendered
    image = rendered()
    above = torch.ones_like(image)
    yield (
        "rendering, backward",
        shapes,
        lambda: torch.autograd.grad(image, (colours, sigmas), above, retain_graph=True),
    )

    estimator = nerfacc.OccGridEstimator(torch.tensor(BOX), resolution=128, levels=1).to(device)
    centre = torch.stack(torch.meshgrid(*[torch.linspace(-1.5, 1.5, 128, device=device)] * 3, indexing="ij"), -1)
    estimator.binaries = ((centre.norm(dim=-1) - 0.9).abs() < 0.03)[None]
    origins = 4 * torch.nn.functional.normalize(random(n // 20, 3) - 0.5, dim=1)
    directions = torch.nn.functional.normalize((random(n // 20, 3) - 0.5) * 1.5 - origins, dim=1)
    taken = len(estimator.sampling(origins, directions, render_step_size=5e-3)[0])
    yield (
        "occupancy sampling",
        {"rays": n // 20, "samples": taken},
        lambda: estimator.sampling(origins, directions, render_step_size=5e-3),
    )


def measure(call: Callable[[], Any], device: torch.device, seconds: float) -> tuple[float, float, float, int]:
    """Median and quartiles in milliseconds, and how often it ran; compiling comes first."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        call()
    wait()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 200):
        start = time.perf_counter()
        call()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return low, median, high, len(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log2", type=int, nargs="+", default=[18, 20], help="samples, as powers of two")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each call")
    parser.add_argument("--original", action="store_true", help="time nerfacc and tiny-cuda-nn themselves")
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    options = parser.parse_args()
    device = torch.device(options.device)
    home = "" if options.original else "raymine.compat."
    nerfacc, tcnn = (importlib.import_module(home + name) for name in ("nerfacc", "tinycudann"))
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    commit = describe_environment(device).commit
    for log2 in options.log2:
        for name, shapes, call in calls(1 << log2, device, nerfacc, tcnn):
            low, median, high, repeats = measure(call, device, options.seconds)
            row = {
                "benchmark": "dropins", "call": name, "through": "originals" if options.original else "raymine",
                "device": where, "torch": torch.__version__, "commit": commit, "shapes": shapes, "repeats": repeats,
                "median_ms": median, "low_ms": low, "high_ms": high,
            }  # fmt: skip
            print(f"{name:28} 2^{log2}  {median:9.3f} ms  ({low:.3f} .. {high:.3f})", flush=True)
            append_rows(options.out, [row])


if __name__ == "__main__":
    main()
