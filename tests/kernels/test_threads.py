"""torch functions whose bits do not depend on the number of threads, and the number of threads of a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import pytest
import torch
from torch import Tensor

from raymine.kernels.threads import mean, power, row_totals, sigmoid, total, using_threads
from support.paths import environment


def root(values: Tensor) -> Tensor:
    """A power as an elementwise function of any number."""
    return power(values.abs(), 0.3)


SIZES = [0, 1, 4095, 4096, 4097, 33_333, 5_000_001]


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("function", [total, mean, sigmoid, root])
def test_result_has_the_same_bits_with_any_number_of_threads(function: Callable[[Tensor], Tensor], n: int) -> None:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n))
    results = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        results.append(function(values))
    assert all(torch.equal(results[0].nan_to_num(), other.nan_to_num()) for other in results[1:])


@pytest.mark.parametrize("n", SIZES)
def test_sums_sigmoid_and_powers_are_right(n: int) -> None:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    torch.testing.assert_close(total(values), values.sum())
    torch.testing.assert_close(mean(values), values.mean(), equal_nan=True)
    torch.testing.assert_close(sigmoid(values), torch.sigmoid(values))
    torch.testing.assert_close(root(values), values.abs() ** 0.3)


def test_shapes_and_strides() -> None:
    values = torch.randn(3, 9001).double()
    torch.testing.assert_close(row_totals(values), values.sum(1))
    torch.testing.assert_close(row_totals(values.T.contiguous().T), values.sum(1))
    torch.testing.assert_close(total(values.T), values.sum())
    assert sigmoid(values.T).shape == (9001, 3)
    torch.testing.assert_close(sigmoid(values.T), torch.sigmoid(values.T))


@pytest.mark.parametrize("function", [total, mean, sigmoid, root])
def test_gradients_are_those_of_torch(function: Callable[[Tensor], Tensor]) -> None:
    values = torch.randn(10_000, dtype=torch.float64).requires_grad_()
    plain = {total: torch.sum, mean: torch.mean, sigmoid: torch.sigmoid, root: lambda x: x.abs() ** 0.3}
    ours, theirs = function(values), plain[function](values)
    weight = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, values, weight), torch.autograd.grad(theirs, values, weight), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_number_of_threads_is_exact_within_the_block_and_restored_after_it() -> None:
    before = torch.get_num_threads(), numba.get_num_threads()
    with using_threads(3):
        assert torch.get_num_threads() == 3
        assert numba.get_num_threads() == min(3, numba.config.NUMBA_NUM_THREADS)
        with using_threads(1):
            assert (torch.get_num_threads(), numba.get_num_threads()) == (1, 1)
        assert torch.get_num_threads() == 3
    assert (torch.get_num_threads(), numba.get_num_threads()) == before


@pytest.mark.timeout(900)
def test_training_gives_the_same_bits_with_1_2_and_3_threads_and_resumed_across_them(tmp_path: Path) -> None:
    """Every mining policy, every torch function of a step, and a resumed run; see `support/threads.py`."""
    env = environment(NUMBA_NUM_THREADS="3", OMP_NUM_THREADS="3", MKL_CBWR="AUTO,STRICT")
    done = subprocess.run(
        [sys.executable, "-m", "support.threads", str(tmp_path)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal ") == 13
