"""Kernels compile, and find room, on GPUs that are not here. The interpreter takes what the compiler would refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from raymine.fused.trainer import _PLENTY

PROGRAM = Path(__file__).with_name("compile_for_tests.py")


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, PROGRAM, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("capability", ["75", "90"])
def test_every_kernel_of_a_step_compiles(capability: str, tmp_path: Path) -> None:
    out = run(tmp_path, capability)
    for kernel in ("draw", "march", "infer", "judge", "select", "train", "adam", "visit", "render"):
        assert f"\n{kernel} " in f"\n{out}"


# A Hopper has 227 KB; the first has what is taken for plenty, and nobody looks.
@pytest.mark.parametrize(
    ("capability", "room", "ways"), [("90", _PLENTY >> 10, (0, 0)), ("80", 163, (0, 2)), ("89", 99, (1, 2))]
)
def test_the_networks_of_the_recipes_find_room(
    capability: str, room: int, ways: tuple[int, int], tmp_path: Path
) -> None:
    out = run(tmp_path, capability, str(room))
    assert f"64 wide: way {ways[0]}" in out
    assert f"128 wide: way {ways[1]}" in out
