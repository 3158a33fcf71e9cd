"""Rendering of the hash-grid field in one kernel: Numba against the reference, and a ray by hand."""

from __future__ import annotations

import math

import pytest
import torch

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.ngp_step.op import WIDTH, Box, Network, render
from raymine.kernels.packed import Samples, pack_counts
from support.ngp_networks import SHAPES, network, rays

pytestmark = pytest.mark.usefixtures("poisoned")

GREY = torch.tensor([0.2, 0.5, 0.9])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 63, 1000])
def test_render_on_cpu_matches_reference(shape: dict, n: int) -> None:
    field, along = network(**shape), rays(n)
    with dispatch.force("reference"):
        expected = render(field, *along, GREY, 1e-4, 1e-5)
    with dispatch.force("cpu"):
        got = render(field, *along, GREY, 1e-4, 1e-5)
    # A sample whose visibility depends on rounding has a weight of at most `stop`.
    for name, a, b in zip(got._fields, got, expected, strict=True):
        assert a.shape == b.shape, name
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3), name


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_render_matches_hand_computed_ray(backend: dispatch.Backend) -> None:
    """The constant field of `test_infer_matches_hand_computed_ray`: two visible samples, each transmitting exp(-1).

    Weights 1 - 1/e and (1 - 1/e) / e; colour before activation (1, -2, 0); midpoints 0.5 / e and 1.5 / e.
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
        out = render(field, torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 1.0]]), samples, GREY, math.exp(-1.5), 0.0)
    first = 1 - 1 / math.e
    second = first / math.e
    opacity = first + second
    assert out.opacity.item() == pytest.approx(opacity)
    assert out.depth.item() == pytest.approx((first * 0.5 + second * 1.5) / math.e)
    sigmoid = [1 / (1 + math.exp(-x)) for x in (1.0, -2.0, 0.0)]
    wanted = [opacity * c + (1 - opacity) * float(b) for c, b in zip(sigmoid, GREY, strict=True)]
    assert out.colour[0].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_render_of_nothing_is_the_background_and_nan_stays_nan(backend: dispatch.Backend) -> None:
    field, (origins, directions, samples) = network(), rays(50)
    empty = samples.count == 0
    with dispatch.force(backend):
        out = render(field, origins, directions, samples, GREY, 1e-4, 0.0)
        assert torch.equal(out.colour[empty], GREY.expand(int(empty.sum()), 3))
        assert (out.opacity[empty] == 0).all()
        assert (render(field, origins, directions, samples, GREY, 0.0, 1.1).opacity == 0).all()
        broken = field._replace(table=torch.full_like(field.table, math.nan))
        assert render(broken, origins, directions, samples, GREY, 1e-4, 1e-5).colour[~empty].isnan().all()


def test_repeated_render_calls_give_identical_pictures() -> None:
    """The kernel reuses scratch memory from tile to tile and must reset it."""
    field, along = network(), rays(200)
    with dispatch.force("cpu"):
        first, again = (render(field, *along, GREY, 1e-4, 1e-5) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_invalid_background_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"`background` must have shape \[3\], got \[4, 3\]"):
        render(network(), *rays(4), torch.zeros(4, 3), 1e-4, 0.0)
