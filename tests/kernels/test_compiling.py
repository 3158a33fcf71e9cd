"""The notice that a kernel is compiled: given once, and not for a kernel that comes from the cache on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba
import pytest

from raymine.kernels import dispatch
from raymine.kernels.compiling import on_first_compile

_PROGRAM = """
import numba
from raymine.kernels.compiling import on_first_compile

@numba.njit(cache=True)
def double(x):
    return 2 * x

with on_first_compile(lambda: print("compiles"), "cpu"):
    assert double(3) == 6
"""


def test_compilation_is_told_once() -> None:
    calls = []
    with on_first_compile(lambda: calls.append("told"), "cpu"):
        assert numba.njit(lambda x: x + 1)(1) == 2
        assert numba.njit(lambda x: x + 2)(1) == 3
    assert numba.njit(lambda x: x + 3)(1) == 4, "compiled outside of the block"
    assert calls == ["told"]


def test_triton_tells_of_compiled_kernels_and_keeps_another_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    others: list[bool] = []
    monkeypatch.setattr(dispatch, "triton_problem", lambda: "")
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda cache_hit, **_: others.append(cache_hit))
    before, calls = triton.knobs.compilation.listener, []
    with on_first_compile(lambda: calls.append("told")):
        for cache_hit in (True, False, False):
            triton.knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit=cache_hit)
            assert calls == ([] if cache_hit else ["told"])
    assert others == [True, False, False]
    assert triton.knobs.compilation.listener is before


def test_kernel_from_the_cache_on_disk_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    said = [
        subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["compiles\n", ""]
