"""`pack`, `losses` and `intersection` of nerfacc 0.2 and 0.3."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raymine.compat import nerfacc_v02, nerfacc_v03
from raymine.compat.nerfacc_v03 import (
    loss_distortion,
    pack_data,
    pack_info,
    ray_aabb_intersect,
    unpack_data,
    unpack_info,
)
from raymine.errors import ConfigError

INFO = torch.tensor([[0, 1], [1, 0], [1, 4]], dtype=torch.int32)
RAYS = torch.tensor([0, 2, 2, 2, 2])
T = torch.arange(5.0)[:, None]


def test_info_and_indices_by_hand() -> None:
    assert unpack_info(INFO, 5).tolist() == RAYS.tolist()
    assert nerfacc_v02.unpack_info(INFO).tolist() == RAYS.tolist()
    # The first sample of an empty ray may be anything.
    assert unpack_info(torch.tensor([[0, 1], [7, 0], [1, 4]]), 5).tolist() == RAYS.tolist()
    found = pack_info(RAYS, 3)
    assert found.dtype == torch.int32
    assert found.tolist() == INFO.tolist()
    assert pack_info(RAYS).tolist() == INFO.tolist()
    assert pack_info(RAYS[:0], 2).tolist() == [[0, 0], [0, 0]]
    assert pack_info(RAYS[:0]).shape == (0, 2)
    with pytest.warns(DeprecationWarning, match="unpack_info"):
        assert nerfacc_v03.unpack_to_ray_indices(INFO, 5).tolist() == RAYS.tolist()
    with pytest.warns(DeprecationWarning, match="unpack_info"):
        assert nerfacc_v02.unpack_to_ray_indices(INFO).tolist() == RAYS.tolist()


def test_data_packed_and_unpacked_is_masked_data() -> None:
    data = torch.rand(4, 3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).bool()
    found, info = pack_data(data, mask)
    assert (found.shape, info.dtype) == ((6, 2), torch.int32)
    assert info.tolist() == [[0, 2], [2, 0], [2, 3], [5, 1]]
    assert nerfacc_v02.pack_data(data, mask)[1].dtype == torch.int64
    back = unpack_data(info, found)
    assert back.shape == (4, 3, 2)
    for ray in range(4):
        own = data[ray][mask[ray]]
        torch.testing.assert_close(back[ray, : len(own)], own)
        assert not bool(back[ray, len(own) :].any())
    assert unpack_data(info, found, 5).shape == (4, 5, 2)
    assert torch.autograd.gradcheck(lambda d: unpack_data(info, pack_data(d, mask)[0], 4), data)


def test_unpacking_nothing() -> None:
    assert unpack_data(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(0, 3), 4).tolist() == [[[0.0] * 3] * 4] * 2
    assert unpack_data(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 3)).shape == (0, 0, 3)


def test_distortion_equals_the_double_sum() -> None:
    start = torch.tensor([[1.0], [0.0], [0.5], [2.0], [2.5]], dtype=torch.float64)
    end = start + 0.4
    weights = torch.rand(5, dtype=torch.float64, requires_grad=True)
    found = loss_distortion(INFO, weights, start, end)
    middle, length = ((start + end) / 2)[:, 0], (end - start)[:, 0]
    for ray in range(3):
        own = (ray == RAYS).nonzero()[:, 0].tolist()
        double = sum(weights[i] * weights[j] * (middle[i] - middle[j]).abs() for i in own for j in own)
        single = sum(weights[i] ** 2 * length[i] / 3 for i in own)
        torch.testing.assert_close(found[ray], torch.as_tensor(double + single, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda w: loss_distortion(INFO, w, start, end), weights)


def test_entry_and_exit_of_a_box_by_hand() -> None:
    origins = torch.tensor([[-1.0, 0.5, 0.5], [0.5, 0.5, 0.5], [-1.0, 2.0, 0.5], [2.0, 0.5, 0.5]])
    directions = torch.tensor([[1.0, 0.0, 0.0]]).expand(4, 3)
    t_min, t_max = ray_aabb_intersect(origins, directions, torch.tensor([0.0, 0, 0, 1, 1, 1]))
    # Through the box, from inside, beside it, and away from it.
    assert t_min.tolist() == [1.0, 0.0, 1e10, 0.0]
    assert t_max.tolist() == [2.0, 0.5, 1e10, -1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unpack_info(INFO, 4), "must follow one another without gaps and have all 4 samples"),
        (lambda: unpack_info(INFO.float(), 5), "`packed_info` must be integers"),
        (lambda: unpack_info(INFO[0], 5), r"`packed_info` must be a tensor of shape \[R, 2\], got \[2\]"),
        (lambda: nerfacc_v02.unpack_info(torch.tensor([[0, -1]])), "`n_samples` must be in 0"),
        (lambda: pack_info(RAYS, 2), r"`ray_indices` must be in 0 \.\. 1, got 0 \.\. 2"),
        (lambda: pack_data(torch.rand(2, 3), torch.ones(2, 3).bool()), r"`data` must have shape \[R, n, D\]"),
        (lambda: pack_data(torch.rand(2, 3, 1), torch.ones(2, 3)), "`mask` must be bool, got torch.float32"),
        (lambda: pack_data(torch.rand(2, 3, 1), torch.ones(2, 2).bool()), r"`mask` must have shape \[2, 3\]"),
        (lambda: unpack_data(INFO, torch.rand(5)), r"`data` must have shape \[all_samples, D\]"),
        (lambda: unpack_data(INFO, torch.rand(5, 1), 3), "`n_samples` must be at least 4"),
        (lambda: unpack_data(INFO, torch.rand(4, 1)), "must lie within the 4 samples"),
        (lambda: loss_distortion(INFO, T[:4, 0], T, T), r"`weights` must have shape \[5\]"),
        (lambda: loss_distortion(INFO, T[:, 0], T[:, 0], T), r"`t_starts` must have shape \[5, 1\]"),
        (lambda: ray_aabb_intersect(torch.rand(2, 3), torch.rand(2, 3), torch.rand(1, 6)), r"`aabb` must have shape"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
