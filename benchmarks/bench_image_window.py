"""Times steps on many large photos: with all of them on the device, and with the part that fits into a memory limit.

    python benchmarks/bench_image_window.py [--n 300] [--gpu-memory 8GB] [--recipe ngp] [--steps 6000] [--dir FOLDER]
                                            [--out FILE]

The photos are those of `bench_packing`: 12 megapixels each, of no scene, so only speed and memory mean something. Each
case runs in a process of its own, on the same packed images, and prints one JSON row: milliseconds per step over the
second half of the steps, the share of them that training waited for images, and the device memory that was taken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench_packing import write_images
from raymine.bench.measure import BURST
from raymine.bench.rows import append_rows
from raymine.caches import parse_size
from raymine.config import to_json
from raymine.engines import engine_for
from raymine.experiment import TrainRequest, open_data
from raymine.experiment.prepare import prepare, split_training
from raymine.experiment.work import limit_memory
from raymine.rundir import describe_environment
from raymine.step import create_state
from raymine.step.distributed.ranks import SOLO


def time_case(options: argparse.Namespace) -> dict[str, object]:
    """The row of one case."""
    limit = parse_size(options.limit) if options.limit else None
    request = TrainRequest(str(options.dir), options.recipe, steps=options.steps, gpu_memory=limit)
    with contextlib.ExitStack() as stack:
        limit_memory(request, stack, SOLO)
        prepared = prepare(request)
        config, device = prepared.config.train, prepared.device
        frames, _ = split_training(prepared.scene, 0)
        began = time.perf_counter()
        data = stack.enter_context(open_data(prepared.scene, frames, device, None)).train
        opened = time.perf_counter() - began
        state = create_state(config, data, seed=0, device=device)
        state.horizon = options.steps
        engine = engine_for(state, data)
        engine.warm_up()
        times, waits = [0.0], [0.0]
        began = time.perf_counter()
        for end in (options.steps // 2, options.steps):
            while state.step < end:
                engine.advance(min(BURST, end - state.step))
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
            waits.append(engine.waited)
        seconds = times[2] - times[1]
        free, total = torch.cuda.mem_get_info()
        return {
            "benchmark": "image window", "images": len(frames), "megapixels": 12, "recipe": prepared.config.recipe,
            "engine": engine.name, "gpu_memory": limit, "image_memory": config.image_memory,
            "step_ms": round(1e3 * seconds / (options.steps - options.steps // 2), 4),
            "waiting": round((waits[2] - waits[1]) / seconds, 4), "open_seconds": round(opened, 1),
            "torch_peak": torch.cuda.max_memory_reserved(), "device_used": total - free,
            "environment": to_json(describe_environment(device)),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="number of photos")
    parser.add_argument("--gpu-memory", default="8GB")
    parser.add_argument("--recipe", default="ngp")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--dir", type=Path, default=None, help="where to put the photos (default: a new folder)")
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    parser.add_argument("--limit", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.limit is not None:
        row = time_case(options)
        print(json.dumps(row), flush=True)
        append_rows(options.out, [row])
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-image-window-", dir=options.dir))
    try:
        write_images(folder / "scene", options.n)
        words = ["--recipe", options.recipe, "--steps", str(options.steps)]
        words += ["--out", str(options.out)] if options.out is not None else []
        for limit in ("", options.gpu_memory):
            line = [sys.executable, __file__, *words, "--dir", str(folder / "scene"), "--limit", limit]
            subprocess.run(line, check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
