"""Several processes for one run, and a sweep of several runs: what a cluster does, on one machine.

    python examples/11_processes_and_sweep.py [SCENE] [--steps 200] [--downscale 4] [--out cluster]

Both are commands of raymine. A program starts them and reads what they print with `--json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import raymine

SWEEP = """
scene = {scene}
out = "sweep"
[train]
steps = {steps}
downscale = {downscale}
hold_out = 4
[space]
mining = ["none", "hard"]
"""


def command(*words: object) -> dict[str, Any]:
    """What a command of raymine prints with `--json`. `CalledProcessError` if it fails."""
    line = [sys.executable, "-m", "raymine", *map(str, words), "--json"]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Several processes, and a sweep.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("cluster"))
    options = parser.parse_args()
    options.out.mkdir(parents=True)

    # Two processes share the rays of every step. On a machine with GPUs: "--gpus", 2. On several: see torchrun.
    limits = ("--steps", options.steps, "--downscale", options.downscale)
    shared = command("train", options.scene, *limits, "--processes", 2, "--device", "cpu", "--out", options.out / "two")
    run = raymine.load(options.out / "two")
    print(f"two processes: status {shared['status']}, step {run.step}, PSNR {run.evaluate(views=5).psnr:.2f} dB")

    # Each setting is a process of its own. Views of the training split choose; test views choose nothing.
    file = options.out / "sweep.toml"
    scene = options.scene if options.scene == "builtin" else str(Path(options.scene).absolute())
    file.write_text(SWEEP.format(scene=json.dumps(scene), steps=options.steps, downscale=options.downscale))
    table = command("sweep", file)
    for row in table["rows"]:
        print(f"{row['settings']}: {row['score']:.2f} dB on held-out training views")
    best = raymine.load(table["rows"][0]["trials"][0]["result"]["run"])
    print(f"best: {table['rows'][0]['settings']}, PSNR {best.evaluate(views=5).psnr:.2f} dB on test views")


if __name__ == "__main__":
    main()
