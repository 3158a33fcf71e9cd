"""Example programs through the drop-ins: which steps are timed, and what is said where a program cannot be run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import REPOSITORY, environment

PROGRAM = """
import argparse, time
import imageio
import torch, tqdm
from lpips import LPIPS
from radiance_fields.ngp import field
from examples.utils import STEPS
from nerfacc.estimators.occ_grid import OccGridEstimator
import nerfacc, tinycudann

parser = argparse.ArgumentParser()
parser.add_argument("--data_root")
parser.add_argument("--scene", choices=["lego"])
args = parser.parse_args()
assert imageio.imread(args.data_root + "/" + args.scene + "/a.png").shape == (2, 3, 4)
assert nerfacc.__name__ == "raymine.compat.nerfacc" and tinycudann.__name__ == "raymine.compat.tinycudann"
estimator = OccGridEstimator(torch.tensor([-1.0, -1, -1, 1, 1, 1]), resolution=4, levels=1)
model, seldom = field(), torch.nn.Linear(1, 1)
lpips = LPIPS(net="vgg").to("cpu")
optimizer = torch.optim.Adam(model.parameters())
other = torch.optim.Adam(seldom.parameters())
for step in tqdm.tqdm(range(STEPS)):
    time.sleep(0.02 if step >= 10 else 0.3)
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    try:
        if step % 2 == 0:
            seldom(torch.ones(1, 1)).sum().backward()
            other.step()
        optimizer.step()
    except Exception:
        raise SystemExit("caught")
print("finished")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What stands for a checkout of nerfacc, and a scene beside it."""
    from PIL import Image

    folder = tmp_path / "nerfacc" / "examples"
    (folder / "radiance_fields").mkdir(parents=True)
    (folder / "radiance_fields" / "__init__.py").write_text("")
    (folder / "radiance_fields" / "ngp.py").write_text("import torch\ndef field():\n    return torch.nn.Linear(1, 1)\n")
    (folder / "utils.py").write_text("STEPS = 40\n")
    (folder / "train_ngp_nerf_occ.py").write_text(PROGRAM)
    (tmp_path / "lego").mkdir()
    Image.new("RGBA", (3, 2)).save(tmp_path / "lego" / "a.png")
    return folder.parent


def bench(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(REPOSITORY / "benchmarks" / "bench_examples.py"), str(checkout), *options]
    source = str(REPOSITORY / "src")
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment(PYTHONPATH=source))


def test_steps_of_the_busiest_optimiser_are_timed_and_the_program_is_ended(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    scene = ("--scene", str(tmp_path / "lego"))
    done = bench(checkout, "occupancy", *scene, "--first", "12", "--steps", "30", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "finished" not in done.stdout
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (row["benchmark"], row["example"], row["from_step"], row["to_step"]) == ("examples", "occupancy", 12, 30)
    assert (row["nerfacc"], row["tinycudann"]) == ("drop-in", "drop-in")
    # The first ten steps, which take 300 ms, do not count, nor does the optimiser that takes every other step.
    assert 20 <= row["low_ms"] <= row["median_ms"] <= row["high_ms"]
    assert row["mean_ms"] < 300
    assert row["memory"] > 0
    assert row["environment"]["device"]


def test_program_that_ends_early_or_is_not_there_is_an_error(checkout: Path, tmp_path: Path) -> None:
    scene = ("--scene", str(tmp_path / "lego"))
    early = bench(checkout, "occupancy", *scene, "--steps", "900")
    assert early.returncode == 1
    assert "ended by itself after 40 steps" in early.stderr
    missing = bench(checkout, "mlp", *scene)
    assert "train_mlp_nerf.py is not there" in missing.stderr
    original = bench(checkout, "occupancy", *scene, "--implementation", "original")
    assert "nerfacc is not installed" in original.stderr
