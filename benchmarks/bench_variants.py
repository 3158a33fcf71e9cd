"""Trains variants of recipes on one scene for equal time, and compares them on held-out views: a JSON row each.

    python benchmarks/bench_variants.py SCENE VARIANTS.json [--seconds 20] [--hold-out 8] [--split test] [--out FILE]

VARIANTS.json is a list of objects: {"name": "no variation", "recipe": "voxels", "mining": "hard", "seed": 0,
"seconds": 20, "set": {"loss[1].weight": 0}, "techniques": {"progressive": true}}; all but `recipe` may be left out.
Views are `--hold-out` views taken out of the training split, so that variants can be chosen by them. `--split test`
scores the test views of the scene instead, for figures to report, and trains on all training views. Training is that of
`raymine train --max-seconds`; the clock does not count looks. `--pixels N` scores every N-th pixel of a view, for
models that render slowly.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch

from raymine.bench.measure import Hooks, final_rays, train_for
from raymine.bench.rows import append_rows
from raymine.contracts import Rays
from raymine.engines import engine_for
from raymine.errors import RaymineError
from raymine.evaluate.views import true_image
from raymine.experiment import TrainRequest, open_data
from raymine.experiment.prepare import prepare, split_training
from raymine.recipes.policies import policy_overrides
from raymine.recipes.techniques import Techniques
from raymine.rundir import describe_environment
from raymine.step import TrainData, TrainState, create_state

LOOKS = (0.05, 0.1, 0.17, 0.25, 0.42, 0.5, 0.67, 0.83, 1.0)
"""Shares of the time at which views are scored."""


class Views:
    """The views that variants are compared on, every `stride`-th pixel of each, in 8 bits as `raymine eval` scores."""

    def __init__(self, data: TrainData, background: tuple[float, float, float], stride: int, device: torch.device):
        self.rig, self.stride, self.device = data.rig, stride, device
        self.backdrop = torch.tensor(background)
        self.truths = [
            true_image(data.images, i, self.backdrop)[0].reshape(-1, 3)[::stride].to(device)
            for i in range(len(data.rig))
        ]

    def psnr(self, renderer: Any) -> float:
        scores = []
        for index, truth in enumerate(self.truths):
            rays, step = self.rig.rays_for_image(index), self.stride
            parts = {name: part[::step].contiguous() for name, part in vars(rays).items() if part is not None}
            some = Rays(**parts)
            colour = renderer.render(some, self.backdrop.to(self.device)).colour.nan_to_num(nan=0.0).clamp(0, 1)
            squared = ((colour * 255).floor() - (truth * 255).floor()).div(255).double().square()
            scores.append(float(-10 * torch.log10(squared.mean())))
        return sum(scores) / len(scores)


def bench(scene_path: str, variant: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train one variant and return its row."""
    seconds = float(variant.get("seconds", options.seconds))
    overrides = {**policy_overrides(variant.get("mining", "hard")), **variant.get("set", {})}
    request = TrainRequest(
        scene_path,
        variant["recipe"],
        max_seconds=seconds,
        device=options.device,
        downscale=options.downscale,
        overrides=overrides,
        techniques=Techniques(**variant.get("techniques", {})),
    )
    prepared = prepare(request)
    scene, device = prepared.scene, prepared.device
    config = prepared.config.train
    scene = scene.reaching(config.levels)
    trained, held_out = split_training(scene, options.hold_out if options.split == "held-out" else 0)
    shown = held_out if options.split == "held-out" else scene.of_split("test")
    with open_data(scene, trained, device, None) as train, open_data(scene, shown, device, None) as test:
        views = Views(test.train, scene.background or (0.0, 0.0, 0.0), options.pixels, device)
        started = time.perf_counter()
        state = create_state(config, train.train, seed=int(variant.get("seed", 0)), device=device)
        engine = engine_for(state, train.train)
        engine.warm_up()
        ready = time.perf_counter() - started

        def look(_: TrainState, elapsed: float) -> tuple[float, float]:
            return round(elapsed, 2), round(views.psnr(engine.renderer()), 3)

        def wait() -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        log = train_for(state, seconds, Hooks(engine.advance, look, synchronise=wait), LOOKS)
        wait()
        begin = time.perf_counter()
        views.psnr(engine.renderer())
        wait()
        last = log.reports[-max(1, len(log.reports) // 10) :]
        return {
            "benchmark": "variants", "scene": Path(scene_path).name, "downscale": options.downscale, **variant,
            "split": options.split, "views": len(shown), "engine": engine.name, "seconds": round(log.elapsed, 2),
            "steps": len(log.reports), "step_ms": round(1e3 * log.elapsed / len(log.reports), 4),
            "rays": round(final_rays(log)), "marched": round(sum(r.marched for r in last) / len(last)),
            "trained": round(sum(r.trained for r in last) / len(last)), "psnr": log.looks,
            "view_seconds": round((time.perf_counter() - begin) / len(shown) * options.pixels, 4),
            "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            "ready_seconds": round(ready, 2), "environment": describe_environment(device),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("variants", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hold-out", type=int, default=8)
    parser.add_argument("--split", choices=("held-out", "test"), default="held-out")
    parser.add_argument("--pixels", type=int, default=1)
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for variant in json.loads(options.variants.read_text()):
        try:
            row = bench(options.scene, variant, options)
        except RaymineError as error:
            print(f"{variant.get('name', variant['recipe'])}: {error}", flush=True)
            continue
        looks = " ".join(f"{at:g}s:{value:.2f}" for at, value in row["psnr"])
        cost = f"{row['step_ms']} ms, {row['steps']} steps, {row['engine']}, {row['view_seconds']} s a view"
        print(f"{variant.get('name', '')} {variant['recipe']}: {looks}  {cost}, trained {row['trained']} of "
              f"{row['marched']}, {row['rays']} rays, ready {row['ready_seconds']} s", flush=True)  # fmt: skip
        append_rows(options.out, [row])
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
