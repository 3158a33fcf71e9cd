"""Helpers of Triton launches: power-of-two sizes, and compiling without running."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from raymine.kernels._triton import compiling, power_of_two
from support.device import TRITON_DEVICE, requires_gpu


def test_power_of_two_rounds_up_and_respects_the_minimum() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
    assert power_of_two(3, least=16) == 16


def sums() -> list[float]:
    """Running sums of ones by a Triton kernel; -1 where the kernel did not run."""
    from raymine.kernels.scan.gpu import scan

    values = torch.ones(6, 7, dtype=torch.float64, device=TRITON_DEVICE)
    first, count = (torch.tensor(each, device=TRITON_DEVICE) for each in ([0, 4], [4, 2]))
    return scan(values, first, count, False, False, False, -1.0)[:, 0].tolist()


COMPUTED, NOTHING = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0], [-1.0] * 6


def test_compiling_affects_launches_of_its_own_thread_only() -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    launch = jit.KernelInterface.__getitem__
    with ThreadPoolExecutor(1) as other, compiling():
        assert sums() == NOTHING
        assert other.submit(sums).result() == COMPUTED
        assert sums() == NOTHING
    assert jit.KernelInterface.__getitem__ is launch
    assert sums() == COMPUTED


def test_two_threads_can_compile_at_the_same_time() -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    launch = jit.KernelInterface.__getitem__
    both, done = threading.Barrier(2, timeout=30), threading.Event()

    def first() -> list[float]:
        with compiling():
            both.wait()
        result = sums()  # while the other one still compiles
        done.set()
        return result

    def second() -> list[float]:
        with compiling():
            both.wait()
            assert done.wait(30)
            return sums()

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(each) for each in (first, second)]
    assert [result.result() for result in results] == [COMPUTED, NOTHING]
    assert jit.KernelInterface.__getitem__ is launch


def test_error_while_compiling_restores_normal_launches() -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    launch = jit.KernelInterface.__getitem__
    with pytest.raises(KeyError), compiling():
        raise KeyError
    assert jit.KernelInterface.__getitem__ is launch
    assert sums() == COMPUTED
    with compiling():
        assert sums() == NOTHING


@requires_gpu
def test_compiling_runs_nothing_and_caches_the_kernels() -> None:
    from raymine.kernels.scan.gpu import _scan, scan

    def ready() -> int:
        return sum(len(cache[0]) for cache in _scan.device_caches.values())

    values = torch.ones(6, 7, dtype=torch.float64, device="cuda")
    first, count = torch.tensor([0, 4], device="cuda"), torch.tensor([4, 2], device="cuda")
    with compiling():
        nothing = scan(values, first, count, False, False, False, -1.0)
    before = ready()
    assert before > 0
    assert (nothing == -1).all()
    assert scan(values, first, count, False, False, False, -1.0)[:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert ready() == before
