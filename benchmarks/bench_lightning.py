"""Times steps of a Lightning Trainer beside those of the plain loop, for each engine that can train the recipe.

    python benchmarks/bench_lightning.py [SCENE] [--recipe ngp] [--engines plain,fused] [--steps 400] [--turns 3]
                                         [--device auto] [--downscale 4] [--out FILE]

The loop and the Trainer take turns, each with a new model, and both count from step `WARM_UP` on. The loop asks the
engine for as many steps at a time as `raymine train` does, the Trainer for one. No logger, progress bar or checkpoint.
Prints one JSON row for each engine: medians of the milliseconds per step over the turns, and what the Trainer adds.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from raymine import recipes
from raymine.bench.measure import BURST
from raymine.bench.rows import append_rows
from raymine.config import replace_fields, to_json
from raymine.engines import engine_for
from raymine.experiment import open_data
from raymine.experiment.prepare import resolve_device
from raymine.lightning import RaymineData, RaymineModule
from raymine.rundir import describe_environment
from raymine.scenes import load_scene
from raymine.step import create_state

WARM_UP = 100
"""Steps outside of the clock: kernels compile, and the occupancy grid is no longer full."""


class Clock(Callback):
    """Seconds of the steps of a fit from step `WARM_UP` on."""

    def __init__(self) -> None:
        self.began = self.seconds = 0.0

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: object) -> None:
        if trainer.global_step == WARM_UP:
            self.began = now()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.seconds = now() - self.began


def now() -> float:
    """The clock, once the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def loop_ms(options: argparse.Namespace, engine_name: str, device: torch.device) -> float:
    """Milliseconds per step of the plain loop."""
    scene = load_scene(options.scene, downscale=options.downscale)
    config = replace_fields(recipes.build(options.recipe, scene, device.type), {"engine": engine_name})
    with open_data(scene, scene.of_split("train"), device, None) as data:
        state = create_state(config, data.train, seed=0, device=device)
        state.horizon = WARM_UP + options.steps
        engine = engine_for(state, data.train)
        engine.warm_up()
        began = 0.0
        for end in (WARM_UP, WARM_UP + options.steps):
            began = now()
            while state.step < end:
                engine.advance(min(BURST, end - state.step))
        return 1e3 * (now() - began) / options.steps


def trainer_ms(options: argparse.Namespace, engine_name: str, device: torch.device) -> tuple[float, str]:
    """Milliseconds per step of a Trainer, and the engine that took them."""
    clock = Clock()
    data = RaymineData(options.scene, downscale=options.downscale, views=0)
    module = RaymineModule(data, recipe=options.recipe, overrides={"engine": engine_name})
    Trainer(
        max_steps=WARM_UP + options.steps, accelerator="gpu" if device.type == "cuda" else "cpu", devices=1,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[clock],
    ).fit(module, data)  # fmt: skip
    return 1e3 * clock.seconds / options.steps, module.engine.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--recipe", default="ngp")
    parser.add_argument("--engines", default="plain,fused")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    options = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    device = resolve_device(options.device)
    for engine in options.engines.split(","):
        loop, fits = [], []
        for _ in range(options.turns):
            loop.append(loop_ms(options, engine, device))
            fits.append(trainer_ms(options, engine, device))
        medians = statistics.median(loop), statistics.median(ms for ms, _ in fits)
        row = {
            "benchmark": "lightning", "scene": Path(options.scene).name, "downscale": options.downscale,
            "recipe": options.recipe, "engine": fits[0][1], "steps": options.steps, "turns": options.turns,
            "loop_ms": round(medians[0], 4), "trainer_ms": round(medians[1], 4),
            "added_ms": round(medians[1] - medians[0], 4),
            "loop_range": [round(min(loop), 4), round(max(loop), 4)],
            "trainer_range": [round(min(ms for ms, _ in fits), 4), round(max(ms for ms, _ in fits), 4)],
            "environment": describe_environment(device),
        }  # fmt: skip
        print(json.dumps(to_json(row)), flush=True)
        append_rows(options.out, [row])


if __name__ == "__main__":
    main()
