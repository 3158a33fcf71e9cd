"""Trains the same model with several engines from the same seeds for the same number of steps, and compares them.

    python benchmarks/bench_engines.py SCENE [--engines fused,captured,plain] [--policies hard] [--steps 2000]
                                       [--seeds 2] [--samples N] [--out FILE]

All engines draw the same rays. One JSON row per run: PSNR over all pixels of the test views, milliseconds per step, and
how many dB the first engine of the list has more. Needs CUDA.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from raymine import recipes
from raymine.bench.rows import append_rows
from raymine.config import replace_fields
from raymine.contracts import Renderer
from raymine.engines import Engine, engine_for, renderer_for
from raymine.evaluate import psnr
from raymine.evaluate.views import true_image
from raymine.experiment import evaluation_frames, open_data
from raymine.rundir import describe_environment
from raymine.scenes import load_scene
from raymine.step import TrainConfig, TrainData, create_state

WARM_UP = 300
"""Steps outside of the clock: the update of single cells, the last kernel to compile, is first due at 256."""


def score(renderer: Renderer, views: TrainData, background: torch.Tensor) -> float:
    """Mean PSNR over views, all of their pixels."""
    scores = []
    for index in range(len(views.rig)):
        truth, mask = true_image(views.images, index, background)
        rays = views.rig.rays_for_image(index)
        shown = renderer.render(rays, background.to(rays.origins.device)).colour.cpu()
        scores.append(psnr(shown.clamp(0, 1).reshape(truth.shape), truth, mask))
    return sum(scores) / len(scores)


def run(config: TrainConfig, data: TrainData, seed: int, steps: int, name: str) -> tuple[Renderer, float]:
    """A renderer of the trained field, and milliseconds per step after the first few steps, which compile."""
    device = torch.device("cuda")
    state = create_state(config, data, seed=seed, device=device)
    state.horizon = steps
    engine: Engine = engine_for(state, data)
    if engine.name != name:
        sys.exit(f"error: the {name} engine cannot train this; {engine.name} would, because {engine.reason}.")
    began, first = 0.0, 0
    while state.step < steps:
        if not first and state.step >= min(WARM_UP, steps - 1):
            torch.cuda.synchronize()
            began, first = time.perf_counter(), state.step
        engine.advance(min(64, steps - state.step) if first else 1)
    torch.cuda.synchronize()
    return renderer_for(state), 1e3 * (time.perf_counter() - began) / (steps - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene")
    parser.add_argument("--recipe", default="ngp")
    parser.add_argument("--engines", default="fused,plain")
    parser.add_argument("--policies", default="hard")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=None, help="of a step; else as the recipe says")
    parser.add_argument("--views", type=int, default=25)
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: the fused step runs on CUDA, and torch sees no CUDA device.")
    device = torch.device("cuda")
    scene = load_scene(options.scene, downscale=options.downscale)
    config = recipes.build(options.recipe, scene, "cuda")
    if options.samples is not None:
        config = replace_fields(config, {"batch.samples": options.samples, "batch.max_rays": options.samples // 4})
    background = torch.tensor(scene.background or (0.0, 0.0, 0.0))
    with (
        open_data(scene, scene.of_split("train"), device, None) as seen,
        open_data(scene, evaluation_frames(scene, options.views), device, None) as unseen,
    ):
        for policy in options.policies.split(","):
            mined = replace_fields(config, {"mining.policy": policy})
            for seed in range(options.seeds):
                compare(options, mined, (seen.train, unseen.train), background, seed)


def compare(
    options: argparse.Namespace,
    config: TrainConfig,
    data: tuple[TrainData, TrainData],
    background: torch.Tensor,
    seed: int,
) -> None:
    """Train every engine from one seed; print and append a row for each. data: training views and test views."""
    found: dict[str, float] = {}
    for name in options.engines.split(","):
        wish = replace_fields(config, {"engine": "auto" if name == "fused" else name})
        renderer, step_ms = run(wish, data[0], seed, options.steps, name)
        found[name] = score(renderer, data[1], background)
        first = next(iter(found.values()))
        row = {
            "benchmark": "engines", "scene": Path(options.scene).name, "recipe": options.recipe, "engine": name,
            "policy": config.mining.policy, "seed": seed, "steps": options.steps, "samples": config.batch.samples,
            "views": len(data[1].rig), "downscale": options.downscale, "psnr": found[name], "step_ms": step_ms,
            "first_more_db": first - found[name], "environment": describe_environment(torch.device("cuda")),
        }  # fmt: skip
        text = f"{config.mining.policy}  seed {seed}  {name}  {found[name]:.3f} dB  {step_ms:.2f} ms a step"
        print(f"{text}  first has {first - found[name]:+.3f} dB", flush=True)
        append_rows(options.out, [row])


if __name__ == "__main__":
    main()
