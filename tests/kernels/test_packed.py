"""The `Samples` record: layout, empty rays, immutability, devices, and its single definition."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import raymine.contracts
import raymine.toolkit.pack
from raymine.kernels import packed
from raymine.kernels.packed import Pack, Samples, pack_counts


def three_rays() -> Samples:
    """Rays of two, no and three samples."""
    t_start = torch.tensor([1.0, 2.0, 0.5, 1.5, 2.5])
    return Samples.from_pack(t_start, t_start + 1, pack_counts(torch.tensor([2, 0, 3])))


def test_samples_from_pack_match_hand_computed_layout() -> None:
    samples = three_rays()
    assert (len(samples), samples.n_rays) == (5, 3)
    assert samples.ray_id.tolist() == [0, 0, 2, 2, 2]
    assert samples.first.tolist() == [0, 2, 2]
    assert samples.count.tolist() == [2, 0, 3]
    assert isinstance(samples.pack, Pack)
    assert samples.pack.first is samples.first
    assert samples.pack.count is samples.count


def test_samples_without_rays_or_intervals_are_empty() -> None:
    empty = torch.zeros(0)
    for rays in (0, 3):
        samples = Samples.from_pack(empty, empty, pack_counts(torch.zeros(rays, dtype=torch.int64)))
        assert (len(samples), samples.n_rays) == (0, rays)
        assert (samples.ray_id.shape, samples.ray_id.dtype) == ((0,), torch.int64)


def test_samples_are_frozen_and_can_be_replaced() -> None:
    samples = three_rays()
    with pytest.raises(FrozenInstanceError):
        samples.t_start = samples.t_end  # type: ignore[misc]
    longer = replace(samples, t_end=samples.t_end + 1)
    assert torch.equal(longer.t_end, samples.t_start + 2)
    assert longer.ray_id is samples.ray_id


def test_to_moves_every_field_to_the_device() -> None:
    moved = three_rays().to("meta")
    assert {row.device.type for row in vars(moved).values()} == {"meta"}


def test_samples_have_one_definition_in_the_package() -> None:
    assert raymine.contracts.Samples is Samples
    for name in ("Pack", "Samples", "pack_counts", "pack_ids"):
        assert getattr(raymine.toolkit.pack, name) is getattr(packed, name)
