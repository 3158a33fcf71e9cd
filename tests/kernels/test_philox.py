"""Philox against its published test vectors, the backends against each other, and the statistics of the draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.philox import reference
from raymine.kernels.philox.op import Stream, integers, uniform, words
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_matches_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert tuple(reference.rounds(torch.tensor([counter]), key)[0].tolist()) == expected


@pytest.mark.parametrize("n", [0, 1, 3, 63, 1000, 5001])
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 17, -1])
def test_cpu_draws_equal_reference(n: int, seed: int) -> None:
    with dispatch.force("cpu"):
        got = words(seed, 123_456, 5, n)
    with dispatch.force("reference"):
        expected = words(seed, 123_456, 5, n)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("n", [0, 1, 63, 1500])
@pytest.mark.parametrize("seed", [0, 2**40 + 17, -1])
def test_gpu_draws_equal_reference(n: int, seed: int) -> None:
    pytest.importorskip("triton")
    with dispatch.force("gpu"):
        got = words(seed, 2**32 - 5, 5, n, TRITON_DEVICE)
    assert torch.equal(got.cpu(), reference.words(seed, 2**32 - 5, 5, n, torch.device("cpu")))


def test_draw_does_not_depend_on_the_number_of_draws() -> None:
    assert torch.equal(words(7, 3, 1, 10), words(7, 3, 1, 1000)[:10])


BOUNDARY = 2**34
"""Index of the first word whose block number takes more than 32 bits."""


@pytest.fixture(params=["reference", "cpu", "gpu"])
def backend(request: pytest.FixtureRequest) -> dispatch.Backend:
    if request.param == "gpu":
        pytest.importorskip("triton")
    return request.param


def drawn(backend: dispatch.Backend, n: int, first: int) -> Tensor:
    with dispatch.force(backend):
        return words(2**40 + 17, 9, 5, n, TRITON_DEVICE if backend == "gpu" else "cpu", first=first).cpu()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 63, 1500])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 5, 1021, 4096])
def test_draws_with_an_offset_are_a_slice_of_the_stream(backend: dispatch.Backend, first: int, n: int) -> None:
    whole = reference.words(2**40 + 17, 9, 5, first + n, torch.device("cpu"))
    got = drawn(backend, n, first)
    assert (got.shape, got.dtype) == ((n,), torch.int64)
    assert torch.equal(got, whole[first:])


@pytest.mark.parametrize("first", [BOUNDARY - 7, BOUNDARY - 4, BOUNDARY, BOUNDARY + 5, 2**40 + 3, 2**62 - 1, 2**62])
def test_offsets_beyond_32_bit_block_numbers_match_reference(backend: dispatch.Backend, first: int) -> None:
    """Draw i is word i % 4 of block i // 4. The low and high halves of the block number are the first and last word of
    the counter."""
    n = 11
    counters = [((i // 4) & 0xFFFFFFFF, 5, 9, (i // 4) >> 32) for i in range(first, first + n)]
    blocks = reference.rounds(torch.tensor(counters), (17, 2**8))
    expected = [int(block[i % 4]) for i, block in zip(range(first, first + n), blocks, strict=True)]
    assert drawn(backend, n, first).tolist() == expected
    assert drawn(backend, 0, first).shape == (0,)


def test_uniform_and_integers_with_an_offset_are_slices_of_the_stream() -> None:
    assert torch.equal(uniform(3, 1, 2, (4, 3), first=9), uniform(3, 1, 2, (7, 3))[3:])
    assert torch.equal(integers(3, 1, 2, 5, 77, first=6), integers(3, 1, 2, 11, 77)[6:])


@pytest.mark.parametrize("first", [-1, 2**62 + 1])
def test_offset_out_of_range_raises(first: int) -> None:
    with pytest.raises(ConfigError, match=rf"`first` must be in 0 .. 2\^62, got {first}"):
        words(0, 0, 0, 1, first=first)


def test_seeds_steps_and_streams_give_different_draws() -> None:
    draws = [words(s, t, k, 256) for s in (0, 1) for t in (0, 1) for k in (Stream.PIXEL, Stream.JITTER)]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert (a == b).sum() <= 1


def test_uniform_draws_pass_mean_and_chi_squared_tests() -> None:
    u = uniform(3, 0, 0, (200_000,))
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 4 * (1 / 12 / 200_000) ** 0.5
    counts = torch.histc(u, 64, 0, 1)
    chi2 = float(((counts - 3125) ** 2 / 3125).sum())
    assert 30 < chi2 < 110  # 63 degrees of freedom: both tails below 1e-4


def test_integers_cover_their_range() -> None:
    n = integers(0, 0, 0, 5000, 7)
    assert set(n.tolist()) == set(range(7))
    with pytest.raises(ConfigError, match="`high` must be in 1"):
        integers(0, 0, 0, 1, 0)
