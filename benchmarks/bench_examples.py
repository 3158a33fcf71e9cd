"""Times the steps of nerfacc's own example programs, through raymine's drop-ins or with the originals.

    python benchmarks/bench_examples.py CHECKOUT {occupancy,proposals,mlp} --scene SCENE
        [--implementation drop-in|original] [--steps 900] [--first 300] [--out FILE]

CHECKOUT is a checkout of nerfacc, of which only the folder `examples` is needed; SCENE a folder in Blender's format
with one of the names that the examples know, such as lego. The program is not changed: a hook on optimisers counts the
steps of the one that takes most, and ends the program. One JSON row: median and quartiles of the milliseconds between
steps `--first` and `--steps` as Python takes them, and their mean with the device waited for at both ends.

With `--implementation original` nerfacc must be installed; tiny-cuda-nn is raymine's where it is not, and the row says
so. lpips, imageio and tqdm, which the examples import, are replaced where they are missing: they are no part of a step.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_post_hook

from raymine.bench.rows import append_rows
from raymine.machine import peak_memory
from raymine.rundir import describe_environment

PROGRAMS = {
    "occupancy": "train_ngp_nerf_occ.py", "proposals": "train_ngp_nerf_prop.py", "mlp": "train_mlp_nerf.py",
}  # fmt: skip
DROP_IN, ORIGINAL = "drop-in", "original"


class Enough(BaseException):
    """Ends the program; no `except Exception` of it catches this."""


class Clock:
    """Notes when each optimiser took its steps, and raises `Enough` when one has taken `last`."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.times: dict[int, list[float]] = {}
        self.optimisers: list[object] = []
        """Kept, so that no later optimiser gets the id of one that is gone."""

    def __call__(self, optimiser: object, args: object, kwargs: object) -> None:
        if id(optimiser) not in self.times:
            self.optimisers.append(optimiser)
        times = self.times.setdefault(id(optimiser), [])
        if len(times) + 1 in (self.first, self.last) and torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        if len(times) == self.last:
            raise Enough

    def longest(self) -> list[float]:
        """The times of the optimiser that took the most steps."""
        return max(self.times.values(), key=len, default=[])


class NoLpips(torch.nn.Module):
    """Stands for `lpips.LPIPS`, which the examples build before training and use only at its end."""

    def __init__(self, **_: object) -> None:
        super().__init__()


def stand_in(name: str, **members: object) -> None:
    """Make `import name` give a module with these members, if there is none of that name."""
    top = name.partition(".")[0]
    if top in sys.modules and not hasattr(sys.modules[top], "STANDS_IN"):
        return
    if top not in sys.modules and importlib.util.find_spec(top) is not None:
        return
    module = ModuleType(name)
    vars(module).update(members, STANDS_IN=True)
    sys.modules[name] = module
    if name != top:
        setattr(sys.modules[top], name.partition(".")[2], module)


def read_image(path: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def prepare(checkout: Path, implementation: str) -> dict[str, str]:
    """Make the imports of an example work, and say which nerfacc and which tiny-cuda-nn it gets."""
    installed = {name: importlib.util.find_spec(name) is not None for name in ("nerfacc", "tinycudann")}
    if implementation == ORIGINAL and not installed["nerfacc"]:
        sys.exit("error: nerfacc is not installed, so there is no original to time.")
    stand_in("lpips", LPIPS=NoLpips)
    stand_in("imageio", imread=read_image)
    stand_in("imageio.v2", imread=read_image)
    stand_in("tqdm", tqdm=lambda items, **_: items)
    # The examples import themselves as `examples.utils`, and each other from their own folder.
    own = ModuleType("examples")
    own.__path__ = [str(checkout / "examples")]
    sys.modules["examples"] = own
    sys.path.insert(0, str(checkout / "examples"))
    through = {}
    for name, there in installed.items():
        through[name] = ORIGINAL if implementation == ORIGINAL and there else DROP_IN
        if through[name] == DROP_IN:
            importlib.import_module(f"raymine.compat.{name}").install()
    return through


def timed(program: Path, scene: Path, first: int, last: int) -> list[float]:
    """Run a program up to a step; the times of its steps."""
    clock = Clock(first, last)
    hook = register_optimizer_step_post_hook(clock)
    sys.argv = [str(program), "--data_root", str(scene.parent), "--scene", scene.name]
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Enough:
        return clock.longest()
    finally:
        hook.remove()
    sys.exit(f"error: {program.name} ended by itself after {len(clock.longest())} steps, before step {last}.")


def commit_of(checkout: Path) -> str | None:
    """The commit of the checkout; None for a copy without history."""
    line = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return found or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("example", choices=PROGRAMS)
    parser.add_argument("--scene", type=Path, required=True)
    parser.add_argument("--implementation", choices=(DROP_IN, ORIGINAL), default=DROP_IN)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--first", type=int, default=300, help="the step from which time counts")
    parser.add_argument("--out", type=Path, default=None, help="file that rows are appended to")
    options = parser.parse_args()
    checkout, scene = options.checkout.resolve(), options.scene.resolve()
    program = checkout / "examples" / PROGRAMS[options.example]
    if not program.is_file():
        sys.exit(f"error: {program} is not there; {options.checkout} must be a checkout of nerfacc with its examples.")
    if not 0 < options.first < options.steps:
        sys.exit(f"error: --first {options.first} must be at least 1 and below --steps {options.steps}.")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    environment = describe_environment(device)
    through = prepare(checkout, options.implementation)
    began = time.perf_counter()
    times = np.array(timed(program, scene, options.first, options.steps))
    between = 1e3 * np.diff(times[options.first - 1 :])
    low, median, high = (float(value) for value in np.percentile(between, (25, 50, 75)))
    row: dict[str, Any] = {
        "benchmark": "examples", "example": options.example, "implementation": options.implementation, **through,
        "scene": scene.name, "from_step": options.first, "to_step": options.steps, "median_ms": round(median, 4),
        "low_ms": round(low, 4), "high_ms": round(high, 4), "mean_ms": round(float(between.mean()), 4),
        "first_step_seconds": round(float(times[0]) - began, 2),
        "memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory(),
        "checkout": commit_of(checkout), "environment": environment,
    }  # fmt: skip
    append_rows(options.out, [row])
    print(
        f"{options.example}, nerfacc {through['nerfacc']}, tiny-cuda-nn {through['tinycudann']}: median "
        f"{median:.2f} ms a step ({low:.2f} to {high:.2f}), mean {row['mean_ms']:.2f}, steps {options.first} to "
        f"{options.steps}",
        flush=True,
    )


if __name__ == "__main__":
    main()
