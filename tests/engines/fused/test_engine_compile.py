"""Kernels compile for GPUs that are not present and fit into their shared memory.

The other tests run Triton's interpreter, which accepts code that the compiler rejects.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from raymine.engines.fused.trainer import _PLENTY
from support.machine_code import unset_registers
from support.paths import environment


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "support.compile_kernels", *arguments]
    variables = environment(TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(folder))
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("capability", ["75", "90"])
def test_every_kernel_of_a_step_compiles(capability: str, tmp_path: Path) -> None:
    out = run(tmp_path, capability)
    for kernel in ("draw", "march", "infer", "judge", "select", "train", "adam", "visit", "render"):
        assert f"\n{kernel} " in f"\n{out}"


# A Hopper has 227 KB. The first case has `_PLENTY`, from which on the trainer does not measure.
@pytest.mark.parametrize(
    ("capability", "room", "ways"),
    [("90", _PLENTY >> 10, (1, 0, 0)), ("80", 163, (1, 2)), ("89", 99, (1, 2)), ("120", 99, (1, 3))],
)
def test_train_kernel_variant_fits_into_shared_memory(
    capability: str, room: int, ways: tuple[int, ...], tmp_path: Path
) -> None:
    out = run(tmp_path, capability, str(room))
    found = [line for line in out.splitlines() if ": way" in line]
    assert found == [f"{name}: way {way}" for name, way in zip(("ngp", "ngp-large", "largest"), ways, strict=False)]


def test_unset_registers_finds_reads_of_unset_registers() -> None:
    right = """
        /*0020*/                   ULDC.64 UR10, c[0x0][0x208] ;
        /*0030*/              @!P0 LDG.E R30, desc[UR10][R14.64] ;
        /*0040*/                   UIADD3.X UR5, UR11, 0x40000040, URZ, UP0, !UPT ;
        /*0050*/                   UMOV UR4, UR10 ;
        /*0060*/                   HGMMA.64x16x16.F32 R24, R36, gdesc[UR2].tnspB, R24, gsb0 ;
    """
    assert unset_registers(right) == []
    wrong = right.replace("UMOV UR4", "UMOV UR6")
    assert unset_registers(wrong) == ["HGMMA.64x16x16.F32 R24, R36, gdesc[UR2].tnspB, R24, gsb0"]
    assert unset_registers(right.replace("ULDC.64", "ULDC")) == ["UIADD3.X UR5, UR11, 0x40000040, URZ, UP0, !UPT"]
