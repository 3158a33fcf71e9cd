"""What all launches of Triton kernels share."""

from __future__ import annotations

import torch

from raymine.kernels._triton import power_of_two
from support.device import requires_gpu


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
    assert power_of_two(3, least=16) == 16


@requires_gpu
def test_compiling_computes_nothing_and_leaves_kernels_ready() -> None:
    from raymine.kernels._triton import compiling
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
