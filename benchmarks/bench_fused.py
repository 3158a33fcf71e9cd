"""Time the fused step stage by stage and train with it: PSNR over time on held-out views, one JSON row a moment.

python benchmarks/bench_fused.py SCENE --policy hard --seconds 20 [--set batch.samples=1048576] --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import ExitStack

import torch
import triton

from raymine import recipes
from raymine.config import replace_fields
from raymine.experiment import held_out, open_data
from raymine.fused.renderer import FusedRenderer
from raymine.fused.stages import ask_field, march_rays
from raymine.fused.trainer import FusedTrainer
from raymine.scenes import load_scene
from raymine.step import create_state

MOMENTS = (0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--policy", default="hard")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--views", type=int, default=25)
    parser.add_argument("--set", action="append", default=[], help="a field of the config, as name=json")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    overrides = {name: json.loads(value) for name, value in (item.split("=", 1) for item in arguments.set)}
    scene = load_scene(arguments.scene, downscale=arguments.downscale)
    device = torch.device("cuda")
    config = replace_fields(recipes.build("ngp", scene, "cuda"), {"mining.policy": arguments.policy, **overrides})
    with ExitStack() as stack:
        data = stack.enter_context(open_data(scene, scene.of_split("train"), device, None)).train
        views = stack.enter_context(open_data(scene, held_out(scene, arguments.views), device, None)).train
        run(arguments, config, data, views)


def run(arguments, config, data, views) -> None:  # type: ignore[no-untyped-def]
    device = torch.device("cuda")
    started = time.perf_counter()
    warm = FusedTrainer(create_state(config, data, seed=1, device=device), data)
    warm.advance(18)
    for everything in (True, False):
        warm.grid.update(warm.model, everything)
    torch.cuda.synchronize()
    compiled = time.perf_counter() - started
    del warm
    state = create_state(config, data, seed=0, device=device)
    trainer = FusedTrainer(state, data)
    renderer = FusedRenderer(state.average.field if state.average else state.field, state.sampler)
    truth = Truth(views, device)
    truth.psnr(renderer, 1)
    spent, moments, rows = 0.0, [m for m in MOMENTS if m <= arguments.seconds], []
    state.horizon = arguments.steps or int(arguments.seconds * 1000)
    while spent < arguments.seconds:
        torch.cuda.synchronize()
        started = time.perf_counter()
        reports = trainer.advance(16)
        spent += time.perf_counter() - started
        if not arguments.steps and spent > 0.02 * arguments.seconds:
            state.horizon = max(state.step + 1, int(state.step * arguments.seconds / spent))
        if (moments and spent >= moments[0]) or spent >= arguments.seconds:
            while moments and spent >= moments[0]:
                moments.pop(0)
            last = reports[-1]
            row = {
                "policy": arguments.policy, "seconds": round(spent, 3), "step": state.step,
                "psnr": round(truth.psnr(renderer, arguments.views), 3),
                "ms_per_step": round(spent / state.step * 1e3, 4),
                "rays": last.rays, "marched": last.marched, "trained": last.trained,
                "seen": int(trainer.buffers.seen[: last.rays].sum()),
                "train_psnr": round(-10 * math.log10(max(last.mse, 1e-10)), 2), "finite": last.finite,
                **{k: round(v, 3) for k, v in last.extra.items()},
            }  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
        if arguments.steps and state.step >= arguments.steps:
            break
    busy = busy_share(trainer)
    stages = time_stages(trainer)
    frames = truth.frames_per_second(renderer)
    memory = torch.cuda.max_memory_allocated() >> 20
    row = {
        "compile_s": round(compiled, 2),
        "busy": round(busy, 3),
        "stages_ms": stages,
        "fps": round(frames, 1),
        "memory_mib": memory,
    }
    rows.append(row)
    print(json.dumps(row), flush=True)
    if arguments.out:
        with open(arguments.out, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


class Truth:
    """Held-out views on the device."""

    def __init__(self, views, device) -> None:  # type: ignore[no-untyped-def]
        self.rays = [views.rig.rays_for_image(i) for i in range(len(views.rig))]
        pictures = [
            torch.from_numpy(views.images.image(i)).to(device).float().reshape(-1, 4) / 255
            for i in range(len(views.rig))
        ]
        self.colours = [p[:, :3] * p[:, 3:] + (1 - p[:, 3:]) for p in pictures]
        self.white = torch.ones(3, device=device)

    def psnr(self, renderer: FusedRenderer, count: int) -> float:
        renderer.refresh()
        scores = []
        for rays, colour in list(zip(self.rays, self.colours, strict=True))[:count]:
            error = (renderer.render(rays, self.white).colour.clamp(0, 1) - colour).square().mean()
            scores.append(-10 * torch.log10(error))
        return float(torch.stack(scores).mean())

    def frames_per_second(self, renderer: FusedRenderer) -> float:
        renderer.render(self.rays[0], self.white)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for rays in self.rays:
            renderer.render(rays, self.white)
        torch.cuda.synchronize()
        return len(self.rays) / (time.perf_counter() - started)


def busy_share(trainer: FusedTrainer) -> float:
    """Share of the wall clock of `advance` that the device works, from steps replayed back to back."""
    for _ in range(4):
        trainer.advance(16)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        trainer.advance(16)
    wall = time.perf_counter() - started
    start.record()
    for i in range(160):
        if i % 16 == 0:
            trainer._graphs["some cells"].replay()
        trainer._graphs["step"].replay()
    end.record()
    torch.cuda.synchronize()
    trainer.reload()
    return start.elapsed_time(end) / 1e3 / wall


def time_stages(trainer: FusedTrainer) -> dict[str, float]:
    """Median milliseconds of each stage, on the state as it is."""

    def median(work) -> float:  # type: ignore[no-untyped-def]
        return round(triton.testing.do_bench_cudagraph(work, rep=20, return_mode="median"), 4)

    b = trainer.buffers
    grid = {
        name: median(lambda e=e: trainer.grid.update(trainer.model, e))
        for name, e in (("grid_all", True), ("grid_some", False))
    }
    trainer.run_stages()
    return {
        "draw": median(trainer.draw),
        "march": median(lambda: march_rays(b, trainer.grid, trainer.n_rays)),
        "infer": median(lambda: ask_field(b, trainer.model, trainer.n_rays, 1e-4)),
        "judge": median(trainer.judge),
        "select": median(trainer.select),
        "train": median(trainer.train),
        "update": median(trainer.update),
        **grid,
    }


if __name__ == "__main__":
    main()
