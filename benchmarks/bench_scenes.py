"""What scenes reach on this machine: PSNR and SSIM of their test views after fixed seconds of training.

    python benchmarks/bench_scenes.py SCENE [SCENE ...] [--seconds 60 300] [--longest 400] [--out FILE]

Images are divided by the smallest whole number that makes their longest side at most `--longest` pixels. Every test
view is evaluated, all of its pixels, as `raymine eval` does. Prints a table, and appends one JSON row per run.
`builtin` names the built-in scene. Runs are kept in `--runs`, or else removed.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import raymine
from raymine.bench.rows import append_rows
from raymine.rundir import describe_environment
from raymine.scenes import load_scene


def divisor(scene: str, longest: int) -> int:
    """The smallest divisor that makes the longest side of every image at most `longest` pixels."""
    sides = [max(camera.width, camera.height) for camera in load_scene(scene).cameras]
    return max(1, -(-max(sides) // longest))


def measured(scene: str, seconds: float, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train on a scene and evaluate its test views; the row of the result."""
    downscale = divisor(scene, options.longest)
    name = Path(scene).resolve().name if scene != "builtin" else scene
    run = raymine.train(
        scene,
        options.recipe,
        seconds=seconds,
        out=folder / f"{name}-{seconds:g}s",
        seed=options.seed,
        device=options.device,
        downscale=downscale,
    )
    scores = run.evaluate()
    camera = run.scene.cameras[0]
    return {
        "benchmark": "scenes",
        "scene": name,
        "format": run.scene.format,
        "recipe": run.config.recipe,
        "seed": options.seed,
        "downscale": downscale,
        "width": camera.width,
        "height": camera.height,
        "train_views": len(run.scene.of_split("train")),
        "test_views": len(scores.views),
        "seconds": seconds,
        "step": run.step,
        "test_psnr": scores.psnr,
        "test_ssim": scores.ssim,
        "environment": describe_environment(run.device),
    }


def table(rows: list[dict[str, Any]], seconds: list[float]) -> str:
    """Markdown: one line per scene, PSNR and SSIM after each number of seconds."""
    lines = [
        "| scene | images | " + " | ".join(f"{s:g} s" for s in seconds) + " |",
        "|---|---|" + "---|" * len(seconds),
    ]
    for name in dict.fromkeys(row["scene"] for row in rows):
        own = {row["seconds"]: row for row in rows if row["scene"] == name}
        first = next(iter(own.values()))
        size = f"{first['train_views']} of {first['width']}x{first['height']}"
        cells = [f"{own[s]['test_psnr']:.1f} dB, {own[s]['test_ssim']:.3f}" if s in own else "" for s in seconds]
        lines.append(f"| {name} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="+", metavar="SCENE")
    parser.add_argument("--seconds", type=float, nargs="+", default=[60.0, 300.0], help="of training; one run for each")
    parser.add_argument("--longest", type=int, default=400, help="longest side of an image in pixels")
    parser.add_argument("--recipe", default="auto", help="auto: the one that `raymine train` chooses for the scene")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=None, help="folder to keep the runs in")
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = options.runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for scene in options.scenes:
            for seconds in options.seconds:
                rows.append(measured(scene, seconds, options, folder))
                append_rows(options.out, rows[-1:])
    print(table(rows, options.seconds))


if __name__ == "__main__":
    main()
