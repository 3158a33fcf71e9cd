"""The messages of ranks in a fused step: kernels against the same in plain torch."""

from __future__ import annotations

import pytest
import torch

from support.fused import DEVICE

ranks = pytest.importorskip("raymine.kernels.ngp_step.gpu_ranks")


@pytest.mark.parametrize(("n", "world"), [(0, 1), (1, 2), (7, 3), (150, 2), (200, 5)])
def test_rays_of_other_ranks_lose_their_length_and_weight(n: int, world: int) -> None:
    kept = torch.zeros(200, device=DEVICE)
    for rank in range(world):
        given = [torch.rand(200, 8, device=DEVICE) + 1 for _ in range(2)]
        rays, wanted = (part.clone() for part in given)
        count = torch.tensor([n], dtype=torch.int32, device=DEVICE)
        ranks.keep_own[(2,)](rays, wanted, count, rank, world, BLOCK=128)
        row = torch.arange(200, device=DEVICE)
        own = (row >= n * rank // world) & (row < n * (rank + 1) // world)
        other = ~own & (row < n)
        kept += own
        given[0][other, 7] = given[0][other, 6]
        given[1][other, 6] = 0.0
        assert torch.equal(rays, given[0])
        assert torch.equal(wanted, given[1])
    assert torch.equal(kept, (torch.arange(200, device=DEVICE) < n).float())


@pytest.mark.parametrize(("programs", "world"), [(1, 1), (5, 2), (8, 3)])
def test_messages_of_all_ranks_add_up_to_what_each_unpacks(programs: int, world: int) -> None:
    sums = torch.randn(world, programs, 8, device=DEVICE)
    counts = torch.randint(0, 1 << 21, (world, 1), dtype=torch.int32, device=DEVICE)
    whole = torch.zeros(8 + world, dtype=torch.float64, device=DEVICE)
    power = 1 << (world - 1).bit_length()
    for rank in range(world):
        message = torch.full_like(whole, torch.nan)
        ranks.pack[(1,)](sums[rank], programs, counts[rank], message, rank, world, SUMS=8, WORLD=power)
        whole += message
    for rank in range(world):
        total = torch.full((8,), torch.nan, device=DEVICE)
        every, first = (torch.full((1,), -1, dtype=torch.int32, device=DEVICE) for _ in range(2))
        ranks.unpack[(1,)](whole, rank, world, total, every, first, WORLD=power)
        torch.testing.assert_close(total, sums.double().sum((0, 1)).float(), rtol=1e-6, atol=1e-6)
        assert int(every) == int(counts.sum())
        assert int(first) == int(counts[:rank].sum())


def test_counts_are_joined_in_order() -> None:
    out = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    parts = [torch.tensor([value], dtype=torch.int32, device=DEVICE) for value in (5, 3, 1)]
    ranks.join_counts[(1,)](*parts, out)
    assert out.tolist() == [5, 3, 1]
