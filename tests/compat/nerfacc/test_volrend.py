"""Drop-ins for nerfacc's scan, pack, volrend and data_specs: signatures, values by hand and by loops, errors."""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from raymine.compat.nerfacc import data_specs, pack, scan, volrend
from raymine.errors import ConfigError

SCAN = ("inputs", "packed_info=None", "indices=None")
FLAT = ("packed_info=None", "ray_indices=None", "n_rays=None")
INTERVALS = ("t_starts", "t_ends", "sigmas")
SEEN = ("early_stop_eps=0.0001", "alpha_thre=0.0", "prefix_trans=None")
SIGNATURES = {
    scan.inclusive_sum: SCAN,
    scan.exclusive_sum: SCAN,
    scan.inclusive_prod: SCAN,
    scan.exclusive_prod: SCAN,
    pack.pack_info: ("ray_indices", "n_rays=None"),
    volrend.rendering: (
        "t_starts", "t_ends", "ray_indices=None", "n_rays=None", "rgb_sigma_fn=None", "rgb_alpha_fn=None",
        "render_bkgd=None", "expected_depths=True",
    ),
    volrend.render_transmittance_from_alpha: ("alphas", *FLAT, "prefix_trans=None"),
    volrend.render_transmittance_from_density: (*INTERVALS, *FLAT, "prefix_trans=None"),
    volrend.render_weight_from_alpha: ("alphas", *FLAT, "prefix_trans=None"),
    volrend.render_weight_from_density: (*INTERVALS, *FLAT, "prefix_trans=None"),
    volrend.render_visibility_from_alpha: ("alphas", *FLAT, *SEEN),
    volrend.render_visibility_from_density: (*INTERVALS, *FLAT, *SEEN),
    volrend.accumulate_along_rays: ("weights", "values=None", "ray_indices=None", "n_rays=None"),
    volrend.accumulate_along_rays_: ("weights", "values=None", "ray_indices=None", "outputs=None"),
    data_specs.RaySamples: ("vals", "packed_info=None", "ray_indices=None", "is_valid=None"),
    data_specs.RayIntervals: ("vals", "packed_info=None", "ray_indices=None", "is_left=None", "is_right=None"),
}  # fmt: skip

ALPHAS = torch.tensor([0.5, 0.75, 0.125, 0.75, 0.25, 0.0, 0.875])
RAYS = torch.tensor([0, 0, 0, 1, 1, 3, 3])
INFO = torch.tensor([[0, 3], [3, 2], [5, 0], [5, 2]])
TRANS = [1.0, 0.5, 0.125, 1.0, 0.25, 1.0, 1.0]
WEIGHTS = [a * t for a, t in zip(ALPHAS.tolist(), TRANS, strict=True)]


@pytest.mark.parametrize(("function", "expected"), list(SIGNATURES.items()), ids=lambda f: getattr(f, "__name__", ""))
def test_signatures_equal_those_of_nerfacc(function: object, expected: tuple[str, ...]) -> None:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    got = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
    assert got == list(expected)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (scan.inclusive_sum, [1, 3, 3, 7, 12, 6, 13]),
        (scan.exclusive_sum, [0, 1, 0, 3, 7, 0, 6]),
        (scan.inclusive_prod, [1, 2, 3, 12, 60, 6, 42]),
        (scan.exclusive_prod, [1, 1, 1, 3, 12, 1, 6]),
    ],
)
def test_scans_match_hand_computed_values(function, expected: list[float]) -> None:  # type: ignore[no-untyped-def]
    inputs = torch.arange(1.0, 8.0)
    info, ids = torch.tensor([[0, 2], [2, 3], [5, 0], [5, 2]]), torch.tensor([0, 0, 1, 1, 1, 4, 4])
    assert function(inputs, info).tolist() == expected
    assert function(inputs, packed_info=info.int()).tolist() == expected
    assert function(inputs, indices=ids).tolist() == expected
    # A ray is a run of equal indices; an index that appears again later starts another ray.
    assert function(inputs, indices=torch.tensor([7, 7, 1, 1, 1, 7, 7])).tolist() == expected
    assert function(inputs[:2].expand(3, 2)).tolist() == [expected[:2]] * 3
    assert function(inputs[:0], indices=ids[:0]).shape == (0,)
    with pytest.raises(ValueError, match="not both"):
        function(inputs, info, ids)
    with pytest.raises(ValueError, match="must be flat"):
        function(inputs[None], info)
    with pytest.raises(ValueError, match=r"`indices` must have shape \[7\]"):
        function(inputs, indices=ids[:3])


def test_pack_info_gives_start_and_count_per_ray() -> None:
    assert pack.pack_info(RAYS, 5).tolist() == [[0, 3], [3, 2], [5, 0], [5, 2], [7, 0]]
    assert pack.pack_info(RAYS).tolist() == INFO.tolist()
    assert pack.pack_info(RAYS.int()).dtype == torch.int32
    assert pack.pack_info(RAYS[:0]).shape == (0, 2)
    assert pack.pack_info(RAYS[:0], 2).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ConfigError, match="must be integers"):
        pack.pack_info(ALPHAS)


@pytest.mark.parametrize(
    "how", [{"packed_info": INFO}, {"ray_indices": RAYS, "n_rays": 4}, {"ray_indices": RAYS}], ids=str
)
def test_flattened_rays_match_hand_computed_values(how: dict[str, Tensor]) -> None:
    prefix = torch.full_like(ALPHAS, 0.5)
    assert volrend.render_transmittance_from_alpha(ALPHAS, **how).tolist() == TRANS
    assert volrend.render_transmittance_from_alpha(ALPHAS, **how, prefix_trans=prefix).tolist() == [
        t / 2 for t in TRANS
    ]
    weights, trans = volrend.render_weight_from_alpha(ALPHAS, **how)
    assert (weights.tolist(), trans.tolist()) == (WEIGHTS, TRANS)
    seen = volrend.render_visibility_from_alpha(ALPHAS, **how, early_stop_eps=0.25, alpha_thre=0.25)
    assert seen.tolist() == [True, True, False, True, True, False, True]

    t0, t1 = torch.arange(7.0), torch.arange(7.0) + 0.5
    sigmas = -torch.log1p(-ALPHAS) * 2
    weights, trans, alphas = volrend.render_weight_from_density(t0, t1, sigmas, **how)
    assert weights.tolist() == pytest.approx(WEIGHTS)
    assert alphas.tolist() == pytest.approx(ALPHAS.tolist())
    trans, again = volrend.render_transmittance_from_density(t0, t1, sigmas, **how, prefix_trans=prefix)
    assert trans.tolist() == pytest.approx([t / 2 for t in TRANS])
    assert torch.equal(again, alphas)
    seen = volrend.render_visibility_from_density(t0, t1, sigmas, **how, early_stop_eps=0.2, alpha_thre=0.2)
    assert seen.tolist() == [True, True, False, True, True, False, True]


def test_batched_rays_match_hand_computed_values() -> None:
    alphas = ALPHAS[:3].expand(2, 3)
    weights, trans = volrend.render_weight_from_alpha(alphas)
    assert trans.tolist() == [TRANS[:3]] * 2
    assert weights.tolist() == [WEIGHTS[:3]] * 2
    assert volrend.accumulate_along_rays(weights).tolist() == [[sum(WEIGHTS[:3])]] * 2
    assert volrend.render_visibility_from_alpha(alphas, early_stop_eps=0.3).tolist() == [[True, True, False]] * 2
    t = torch.arange(3.0)
    # Distances broadcast over rays.
    found = volrend.render_weight_from_density(t, t + 1, -torch.log1p(-alphas))
    assert torch.allclose(found[0], weights)


def test_accumulate_along_rays_sums_weighted_values_per_ray() -> None:
    weights, values = torch.tensor(WEIGHTS), torch.rand(7, 2)
    expected = torch.stack([(weights[:, None] * values)[r == RAYS].sum(0) for r in range(5)])
    assert torch.allclose(volrend.accumulate_along_rays(weights, values, RAYS, 5), expected)
    order = torch.randperm(7)
    assert torch.allclose(volrend.accumulate_along_rays(weights[order], values[order], RAYS[order], 5), expected)
    out = torch.ones(5, 2)
    assert volrend.accumulate_along_rays_(weights, values, RAYS, out) is None
    assert torch.allclose(out, expected + 1)
    out = torch.ones(2, 1)
    volrend.accumulate_along_rays_(weights.expand(2, 7), outputs=out)
    assert torch.allclose(out, 1 + weights.sum().expand(2, 1))
    assert volrend.accumulate_along_rays(weights[:0], None, RAYS[:0], 3).tolist() == [[0.0]] * 3
    for call, words in (
        (lambda: volrend.accumulate_along_rays(weights, values, RAYS), "needs `n_rays`"),
        (lambda: volrend.accumulate_along_rays(weights, values[:3], RAYS, 5), r"must have shape \[7, D\]"),
        (lambda: volrend.accumulate_along_rays(weights, values, RAYS[:3], 5), "must have one shape"),
        (lambda: volrend.accumulate_along_rays_(weights, values, RAYS), "needs `outputs`"),
        (lambda: volrend.accumulate_along_rays_(weights, values, RAYS, torch.ones(5, 3)), r"shape \[R, 2\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    leaves = [x.double().requires_grad_() for x in (weights, values)]
    assert torch.autograd.gradcheck(lambda w, v: volrend.accumulate_along_rays(w, v, RAYS, 5), leaves)


def test_rendering_matches_plain_loop() -> None:
    torch.manual_seed(1)
    t0 = torch.rand(7)
    t1, rgbs, sigmas, bkgd = t0 + torch.rand(7), torch.rand(7, 3), torch.rand(7) * 3, torch.tensor([0.1, 0.5, 0.9])
    asked = []

    def field(a: Tensor, b: Tensor, rays: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(rays)
        return rgbs, sigmas

    found = volrend.rendering(t0, t1, RAYS, n_rays=4, rgb_sigma_fn=field, render_bkgd=bkgd)
    colours, opacities, depths, extras = found
    assert asked[0] is RAYS
    assert set(extras) == {"weights", "alphas", "trans", "sigmas", "rgbs"}
    for ray in range(4):
        through, colour, total, depth = 1.0, [0.0] * 3, 0.0, 0.0
        for i in (ray == RAYS).nonzero().flatten().tolist():
            w = through * (1 - math.exp(-float(sigmas[i] * (t1[i] - t0[i]))))
            through -= w
            total += w
            depth += w * float(t0[i] + t1[i]) / 2
            colour = [c + w * x for c, x in zip(colour, rgbs[i].tolist(), strict=True)]
        behind = [c + through * x for c, x in zip(colour, bkgd.tolist(), strict=True)]
        assert colours[ray].tolist() == pytest.approx(behind, rel=1e-5)
        assert float(opacities[ray]) == pytest.approx(total, rel=1e-5)
        assert float(depths[ray]) == pytest.approx(depth / max(total, 1e-7), rel=1e-5)
    alphas = extras["alphas"]
    other = volrend.rendering(t0, t1, RAYS, 4, rgb_alpha_fn=lambda *_: (rgbs, alphas), render_bkgd=bkgd)
    assert torch.allclose(other[0], colours)
    # If both callbacks are given, densities take precedence.
    both = volrend.rendering(t0, t1, RAYS, 4, field, lambda *_: (rgbs, alphas), bkgd)
    assert "sigmas" in both[3]
    batched = volrend.rendering(t0[None], t1[None], rgb_sigma_fn=lambda a, b, r: (rgbs[None], sigmas[None]))
    assert batched[0].shape == (1, 3)


def test_rendering_without_samples_is_background_and_bad_arguments_raise() -> None:
    none = torch.zeros(0)
    colours, opacities, depths, _ = volrend.rendering(
        none, none, none.long(), 2, rgb_sigma_fn=lambda *_: (none, none), render_bkgd=torch.ones(3)
    )
    assert colours.tolist() == [[1.0] * 3] * 2
    assert opacities.tolist() == depths.tolist() == [[0.0]] * 2
    t = torch.rand(7)
    for call, words in (
        (lambda: volrend.rendering(t, t, RAYS, 4), "got neither"),
        (lambda: volrend.rendering(t, t, RAYS, rgb_sigma_fn=lambda *_: (t, t)), "needs `n_rays`"),
        (lambda: volrend.rendering(t, t, RAYS[:2], 4, rgb_sigma_fn=lambda *_: (t, t)), "must have one shape"),
        (lambda: volrend.render_weight_from_alpha(t, ray_indices=RAYS.flip(0), n_rays=4), "must ascend"),
        (lambda: volrend.render_weight_from_alpha(t, INFO, RAYS), "not both"),
        (lambda: volrend.render_weight_from_alpha(t, INFO[:, 0]), r"`packed_info` must have shape \[R, 2\]"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_weight_gradients_are_correct_behind_an_opaque_sample() -> None:
    """At an opacity of 1, where nerfacc documents its own gradient as wrong."""
    alphas = torch.tensor([0.3, 1.0, 0.4, 0.2], dtype=torch.float64, requires_grad=True)
    ids = torch.zeros(4, dtype=torch.int64)
    assert torch.autograd.gradcheck(lambda a: volrend.render_weight_from_alpha(a, ray_indices=ids, n_rays=1), alphas)
    sigmas = torch.rand(4, dtype=torch.float64, requires_grad=True)
    t = torch.arange(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda s: volrend.render_weight_from_density(t, t + 1, s, ray_indices=ids, n_rays=1), sigmas
    )


def test_ray_records_have_optional_fields_and_convert_from_cpp() -> None:
    samples = data_specs.RaySamples(torch.rand(7), INFO, ray_indices=RAYS)
    assert samples.device == torch.device("cpu")
    assert samples.is_valid is None
    edges = data_specs.RayIntervals(torch.rand(2, 5))
    assert (edges.packed_info, edges.ray_indices, edges.is_left, edges.is_right) == (None,) * 4
    assert edges.device == torch.device("cpu")
    first, count = INFO.unbind(-1)
    both = {"vals": samples.vals, "chunk_starts": first, "chunk_cnts": count, "ray_indices": RAYS}
    again = data_specs.RaySamples._from_cpp(SimpleNamespace(**both, is_valid=None))
    assert torch.equal(again.packed_info, INFO)  # type: ignore[arg-type]
    marks = {"is_left": RAYS > 0, "is_right": RAYS > 1}
    other = data_specs.RayIntervals._from_cpp(SimpleNamespace(**(both | {"chunk_cnts": None}), **marks))
    assert other.packed_info is None
    assert other.is_left is marks["is_left"]
    for record in (samples, edges):
        with pytest.raises(NotImplementedError, match="_to_cpp"):
            record._to_cpp()


def test_depths_are_sums_where_they_are_not_asked_to_be_expected_values() -> None:
    start = torch.arange(7.0)
    alphas = ALPHAS.clone().requires_grad_()
    how = {"ray_indices": RAYS, "n_rays": 4, "rgb_alpha_fn": lambda *_: (torch.ones(7, 3), alphas)}
    _, opacities, expected, _ = volrend.rendering(start, start + 1, **how)
    _, _, sums, _ = volrend.rendering(start, start + 1, **how, expected_depths=False)
    torch.testing.assert_close(sums, expected * opacities)
    by_hand = [sum(w * (t + 0.5) for w, t, r in zip(WEIGHTS, range(7), RAYS.tolist(), strict=True) if r == ray)
               for ray in range(4)]  # fmt: skip
    torch.testing.assert_close(sums[:, 0], torch.tensor(by_hand))
    sums.sum().backward()
    assert alphas.grad is not None


def test_every_run_of_indices_is_a_ray() -> None:
    found = scan.exclusive_sum(torch.ones(6), indices=torch.tensor([4, 4, 1, 1, 1, 4]))
    assert found.tolist() == [0, 1, 0, 1, 2, 0]
    assert scan.inclusive_sum(torch.ones(0), indices=torch.zeros(0, dtype=torch.int64)).shape == (0,)
