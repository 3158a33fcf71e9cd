"""The fused stages of the hash-grid field: a ray by hand; Numba against the reference, values and every gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.ngp_step.op import HIDDEN, WIDTH, Box, Network, infer, train
from raymine.kernels.packed import Samples, pack_counts
from support.kinks import clear_of_kinks
from support.ngp_networks import SHAPES, network, rays

pytestmark = pytest.mark.usefixtures("poisoned")


def certain(field: Network, along: tuple[Tensor, Tensor, Samples], stop: float, faint: float) -> Tensor:
    """[B] bool: samples whose visibility does not depend on the rounding of their opacity or transmittance."""
    with dispatch.force("reference"):
        ends = [infer(field, *along, stop * by, faint * by).density == HIDDEN for by in (0.999, 1.001)]
    assert float((ends[0] == ends[1]).float().mean()) > 0.95 or not len(ends[0])
    return ends[0] == ends[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("colour", [True, False])
def test_infer_on_cpu_matches_reference_for_any_shape(shape: dict, colour: bool) -> None:
    seen = torch.zeros(0, dtype=torch.bool)
    while not 0 < int(seen.sum()) < len(seen):  # one random field in 200 has all samples visible, or none
        field, along = network(**shape), rays(63)
        with dispatch.force("reference"):
            expected = infer(field, *along, 1e-2, 1e-3, colour=colour, keep=not colour)
        seen = expected.density != HIDDEN
    with dispatch.force("cpu"):
        got = infer(field, *along, 1e-2, 1e-3, colour=colour, keep=not colour)
    sure = certain(field, along, 1e-2, 1e-3)
    assert torch.equal((got.density != HIDDEN)[sure], seen[sure])
    assert torch.allclose(got.density[sure], expected.density[sure], rtol=1e-3, atol=1e-3)
    assert torch.allclose(got.colour[sure], expected.colour[sure], rtol=1e-3, atol=1e-3)
    assert (got.colour[got.density == HIDDEN] == 0).all()
    assert len(got.features) == len(expected.features) == (0 if colour else len(seen))
    if not colour:
        assert torch.allclose(got.features[seen & sure], expected.features[seen & sure], atol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_infer_on_cpu_matches_reference_for_any_number_of_rays(n: int) -> None:
    field, along = network(), rays(n)
    with dispatch.force("cpu"):
        got = infer(field, *along, 1e-4, 0.0)
    with dispatch.force("reference"):
        expected = infer(field, *along, 1e-4, 0.0)
    sure = certain(field, along, 1e-4, 0.0)
    assert torch.equal((got.density == HIDDEN)[sure], (expected.density == HIDDEN)[sure])
    assert torch.allclose(got.density[sure], expected.density[sure], rtol=1e-3, atol=1e-3)
    assert torch.allclose(got.colour[sure], expected.colour[sure], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_infer_matches_hand_computed_ray(backend: dispatch.Backend) -> None:
    """A constant field: one level of ones, so that every layer is a short sum.

    Encoding (1); hidden (relu(2), relu(-1)) = (2, 0); geometry (2 a, 2). With a = 1 the density is exp(2 - 1) = e, and
    an interval of 1 / e transmits exp(-1). The colour reads column 1 of the geometry: 2 * 0.5 = 1, 2 * -1 = -2 and 0.
    """
    spec = GridSpec(levels=1, features=1, log2_entries=6, base=2, finest=2)
    colour = torch.zeros(2 + WIDTH, 3)
    colour[1] = torch.tensor([0.5, -1.0, 0.0])
    box = Box(torch.zeros(3), torch.ones(3), False)
    layers = (torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0], [7.0, 7.0]]))
    field = Network(torch.ones(spec.total_entries, 1), spec, layers, (colour,), box)
    edges = torch.arange(5.0) / math.e
    samples = Samples.from_pack(edges[:-1], edges[1:], pack_counts(torch.tensor([4])))
    with dispatch.force(backend):
        out = infer(field, torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 1.0]]), samples, math.exp(-1.5), 0.0)
    # Transmittance before the samples: 1, e^-1, e^-2, e^-3; with a stop of e^-1.5 the first two are visible.
    assert out.density.tolist() == pytest.approx([2.0, 2.0, HIDDEN, HIDDEN])
    assert out.colour.reshape(-1).tolist() == pytest.approx([1.0, -2.0, 0.0] * 2 + [0.0, 0.0, 0.0] * 2)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_faint_samples_are_hidden_and_nan_densities_are_kept(backend: dispatch.Backend) -> None:
    field, (origins, directions, samples) = network(), rays(50)
    with dispatch.force(backend):
        assert (infer(field, origins, directions, samples, 0.0, 1.1).density == HIDDEN).all()
        broken = field._replace(table=torch.full_like(field.table, math.nan))
        assert infer(broken, origins, directions, samples, 1e-4, 1e-3).density.isnan().all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 63, 1000])
def test_train_on_cpu_matches_reference_gradients(shape: dict, n: int) -> None:
    field = network(**shape)
    positions, directions = torch.rand(n, 3) * 2.4 - 1.2, torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)
    clear = clear_of_kinks(field, positions, directions, within=1e-5)
    assert float(clear.float().mean()) > 0.95 or n < 63
    grads = torch.randn(n, 3) * clear[:, None], torch.randn(n) * clear
    results = {}
    for backend in ("cpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            out = train(field, positions, directions, *grads)
        assert len(out.rows.unique()) == len(out.rows)
        results[backend] = (torch.zeros_like(field.table).index_copy(0, out.rows, out.values), *out.layers)
    assert len(results["cpu"]) == 1 + len(field.density) + len(field.colour)
    for got, expected in zip(results["cpu"], results["reference"], strict=True):
        limit = 1e-5 * max(1.0, float(expected.abs().max()))
        assert torch.allclose(got, expected, rtol=1e-3, atol=limit)


def test_repeated_train_calls_give_identical_gradients() -> None:
    """The CPU kernel reuses scratch memory between calls and must reset it."""
    field = network()
    args = torch.rand(200, 3), torch.tensor([[0.0, 0.0, 1.0]]).expand(200, 3), torch.randn(200, 3), torch.randn(200)
    with dispatch.force("cpu"):
        first = train(field, *args)
        train(field, *(part[:50] for part in args))
        again = train(field, *args)
    assert torch.equal(first.rows, again.rows)
    assert torch.equal(first.values, again.values)


def test_invalid_arguments_raise_config_error() -> None:
    field, (origins, directions, samples) = network(), rays(4)
    with pytest.raises(ConfigError, match=r"`directions` must have shape \[4, 3\], got \[3, 3\]"):
        infer(field, origins, directions[:3], samples, 1e-4, 0.0)
    with pytest.raises(ConfigError, match="layer 2 must have 32 inputs"):
        infer(field._replace(colour=(torch.zeros(9, 3),)), origins, directions, samples, 1e-4, 0.0)
    with pytest.raises(ConfigError, match="the last layer must have 3 outputs, got 4"):
        infer(field._replace(colour=(torch.zeros(32, 4),)), origins, directions, samples, 1e-4, 0.0)
    with pytest.raises(ConfigError, match=r"`colour_grad` must have shape \[5, 3\]"):
        train(field, torch.zeros(5, 3), torch.zeros(5, 3), torch.zeros(5, 1), torch.zeros(5))
