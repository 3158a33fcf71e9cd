"""Packs and scans of the toolkit: by hand, edge cases, batched against packed, and the documentation page."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raymine.errors import ConfigError
from raymine.toolkit.pack import Pack, pack_counts, pack_ids
from raymine.toolkit.scan import running_product, running_sum
from support.paths import DOCS

PAGE = DOCS / "toolkit" / "scan.md"


def test_pack_counts_matches_hand_computed_layout() -> None:
    pack = pack_counts(torch.tensor([2, 0, 3], dtype=torch.int32))
    assert pack.first.tolist() == [0, 2, 2]
    assert pack.count.tolist() == [2, 0, 3]
    assert pack.first.dtype == pack.count.dtype == torch.int64
    assert pack.n_rays == 3
    assert pack.ray_id().tolist() == [0, 0, 2, 2, 2]


@given(st.lists(st.integers(0, 5), max_size=8))
@settings(deadline=None, max_examples=40)
def test_pack_ids_inverts_ray_id(counts: list[int]) -> None:
    pack = pack_counts(torch.tensor(counts, dtype=torch.int64))
    assert pack.ray_id().tolist() == [ray for ray, n in enumerate(counts) for _ in range(n)]
    assert torch.equal(pack.ray_id(sum(counts)), pack.ray_id())
    again = pack_ids(pack.ray_id(), len(counts))
    assert torch.equal(again.first, pack.first)
    assert torch.equal(again.count, pack.count)


def test_packs_without_rays_or_samples_are_empty() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert pack_counts(none).n_rays == 0
    assert pack_ids(none, 3).count.tolist() == [0, 0, 0]
    assert pack_ids(none, 0).ray_id().shape == (0,)


@pytest.mark.parametrize(
    ("ids", "n", "words"),
    [
        ([0, 2, 1], 3, "must ascend"),
        ([0, 1, 3], 3, r"must be in 0 .. 2, got 0 .. 3"),
        ([-1, 0], 3, r"got -1 .. 0"),
        ([0], 0, r"must be in 0 .. -1"),
        ([0], -1, "`n_rays` must be in 0"),
        ([0.0], 1, "must be integers, got torch.float32"),
        ([[0]], 1, r"must have shape \[R\], got \[1, 1\]"),
    ],
)
def test_invalid_ids_raise(ids: list[int], n: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pack_ids(torch.tensor(ids), n)


@pytest.mark.parametrize(
    ("counts", "words"), [([1, -2], "not be negative, but `count` of ray 1 is -2"), ([1.5], "must be integers")]
)
def test_invalid_counts_raise(counts: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pack_counts(torch.tensor(counts))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("scan", [running_sum, running_product])
def test_batched_scan_equals_packed_scan_of_rays_of_one_length(scan, exclusive: bool) -> None:  # type: ignore[no-untyped-def]
    batched = torch.rand(2, 3, 7, dtype=torch.float64)
    batched[0, 1, 4] = 0
    batched.requires_grad_()
    flat = batched.reshape(-1)
    weight = torch.randn_like(batched)
    results = []
    for out in (scan(batched, exclusive=exclusive), scan(flat, pack_counts(torch.full((6,), 7)), exclusive=exclusive)):
        out = out.reshape(2, 3, 7)
        results.append((out.detach(), torch.autograd.grad((out * weight).sum(), batched)[0]))
    for got, expected in zip(*results, strict=True):
        assert torch.allclose(got, expected, rtol=1e-12)


def test_batched_scan_matches_hand_computed_values() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0]])
    assert running_sum(values).tolist() == [[1.0, 3.0, 6.0]]
    assert running_sum(values, exclusive=True).tolist() == [[0.0, 1.0, 3.0]]
    assert running_product(values).tolist() == [[1.0, 2.0, 6.0]]
    assert running_product(values, exclusive=True).tolist() == [[1.0, 1.0, 2.0]]


@pytest.mark.parametrize("scan", [running_sum, running_product])
def test_batched_scan_handles_empty_nan_and_half_precision_inputs(scan) -> None:  # type: ignore[no-untyped-def]
    for exclusive in (False, True):
        assert scan(torch.zeros(3, 0), exclusive=exclusive).shape == (3, 0)
        assert scan(torch.zeros(0, 4), exclusive=exclusive).shape == (0, 4)
        out = scan(torch.tensor([[1.0, torch.nan, 1.0], [1.0, 1.0, 1.0]]), exclusive=exclusive)
        assert out.isfinite().tolist() == [[True, exclusive, False], [True] * 3]
        assert scan(torch.ones(2, 3, dtype=torch.bfloat16), exclusive=exclusive).dtype == torch.bfloat16
    assert float(running_sum(torch.ones(1, 4000, dtype=torch.float16))[0, -1]) == 4000
    with pytest.raises(ConfigError, match="must have a dimension"):
        scan(torch.tensor(1.0))


def test_scan_accepts_channels_and_checks_the_pack() -> None:
    pack = pack_counts(torch.tensor([2, 1]))
    values = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert running_sum(values, pack).tolist() == [[1.0, 10.0], [3.0, 30.0], [3.0, 30.0]]
    with pytest.raises(ConfigError, match="within the 2 samples"):
        running_sum(values[:2], pack)
    assert running_sum(torch.ones(4), pack).isnan().tolist() == [False, False, False, True]
    assert running_sum(values, Pack(*(x.int() for x in pack)))[1, 0] == 3


def test_documentation_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
