"""Running sums and products: by hand, by a plain loop, gradients at zeros, and every backend against the reference."""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.scan.op import running_product, running_sum
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")

BACKENDS: list[dispatch.Backend] = ["reference", "cpu", "gpu"]
SCANS = [(scan, exclusive) for scan in (running_sum, running_product) for exclusive in (False, True)]
IDS = ["sum", "exclusive sum", "product", "exclusive product"]
Scan = Callable[..., Tensor]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> dispatch.Backend:
    if request.param == "gpu":
        pytest.importorskip("triton")
    return request.param


def at(backend: dispatch.Backend) -> str:
    return TRITON_DEVICE if backend == "gpu" else "cpu"


def ragged(rays: int, most: int = 40) -> tuple[Tensor, Tensor]:
    """first, count of random rays; about a third have no samples."""
    count = torch.randint(0, most, (rays,))
    count[torch.rand(rays) < 0.3] = 0
    return count.cumsum(0) - count, count


def looped(values: Tensor, first: Tensor, count: Tensor, scan: Scan, exclusive: bool) -> Tensor:
    """The scan as a plain Python loop."""
    out = torch.full_like(values, torch.nan)
    for begin, n in zip(first.tolist(), count.tolist(), strict=True):
        total = torch.ones_like(values[:1].sum(0)) if scan is running_product else torch.zeros_like(values[:1].sum(0))
        for i in range(begin, begin + n):
            before = total
            total = total * values[i] if scan is running_product else total + values[i]
            out[i] = before if exclusive else total
    return out


def slope(factors: list[float], grad: list[float], exclusive: bool) -> list[float]:
    """dLoss/dx_k of one ray's product: the sum over i of g_i dy_i/dx_k, multiplied out without the k-th factor."""
    n = len(factors)
    return [
        sum(
            grad[i] * math.prod(factors[j] for j in range(i + (not exclusive)) if j != k)
            for i in range(k + exclusive, n)
        )
        for k in range(n)
    ]


EXPECTED = {
    "sum": [1.0, 3.0, 3.0, 7.0, 12.0],
    "exclusive sum": [0.0, 1.0, 0.0, 3.0, 7.0],
    "product": [1.0, 2.0, 3.0, 12.0, 60.0],
    "exclusive product": [1.0, 1.0, 1.0, 3.0, 12.0],
}


@pytest.mark.parametrize(("how", "name"), list(zip(SCANS, IDS, strict=True)), ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_scans_match_hand_computed_values(
    backend: dispatch.Backend, how: tuple[Scan, bool], name: str, dtype: torch.dtype
) -> None:
    """1, 2 on one ray, nothing on the second, 3, 4, 5 on the third."""
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=dtype, device=at(backend))
    first, count = (torch.tensor(x, device=at(backend)) for x in ([0, 2, 2], [2, 0, 3]))
    with dispatch.force(backend):
        out = how[0](values, first, count, exclusive=how[1])
    assert out.dtype == dtype
    assert out.tolist() == EXPECTED[name]


def test_reversed_sum_matches_hand_computed_values(backend: dispatch.Backend) -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=at(backend))
    first, count = (torch.tensor(x, device=at(backend)) for x in ([0, 2], [2, 3]))
    with dispatch.force(backend):
        assert running_sum(values, first, count, reverse=True).tolist() == [3.0, 2.0, 12.0, 9.0, 5.0]
        assert running_sum(values, first, count, reverse=True, exclusive=True).tolist() == [2.0, 0.0, 9.0, 5.0, 0.0]


@pytest.mark.parametrize("how", SCANS, ids=IDS)
@pytest.mark.parametrize("channels", [0, 1, 3])
def test_scans_match_plain_loop(backend: dispatch.Backend, how: tuple[Scan, bool], channels: int) -> None:
    torch.manual_seed(0)
    first, count = ragged(9)
    n = int(count.sum())
    values = torch.rand((n, channels) if channels else (n,), dtype=torch.float64) * 1.6
    with dispatch.force(backend):
        out = how[0](*(x.to(at(backend)) for x in (values, first, count)), exclusive=how[1])
    assert torch.allclose(out.cpu(), looped(values, first, count, *how), rtol=1e-12)


@pytest.mark.parametrize("how", SCANS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("backend", "rays"), [*(("cpu", n) for n in (0, 1, 63, 1000)), *(("gpu", n) for n in (0, 1, 9))]
)
def test_kernels_match_reference_values_and_gradients(
    backend: dispatch.Backend, rays: int, dtype: torch.dtype, how: tuple[Scan, bool]
) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    torch.manual_seed(rays)
    scan, exclusive = how
    first, count = (part.to(at(backend)) for part in ragged(rays, most=90))
    n = int(count.sum())
    # Non-contiguous in the samples, and with factors that are 0.
    values = (torch.rand(3, n, dtype=dtype) * 1.5).clamp_min(0.03).to(at(backend)).t()
    values[torch.rand(n) < 0.05] = 0
    leaf, grad = values.requires_grad_(), torch.randn(n, 3, dtype=dtype, device=at(backend))
    results = {}
    for name in ("reference", backend):
        with dispatch.force(name):  # type: ignore[arg-type]
            out = scan(leaf, first, count, exclusive=exclusive)
            results[name] = out.detach(), torch.autograd.grad(out, leaf, grad)[0]
    near = 2e-5 if dtype == torch.float32 else 1e-12
    for name, got, expected in zip(("values", "gradient"), results[backend], results["reference"], strict=True):
        assert torch.allclose(got, expected, rtol=near, atol=near), name


@pytest.mark.parametrize("how", SCANS, ids=IDS)
def test_scans_pass_gradcheck_and_gradgradcheck(backend: dispatch.Backend, how: tuple[Scan, bool]) -> None:
    first, count = (torch.tensor(x, device=at(backend)) for x in ([0, 3, 3], [3, 0, 2]))
    values = torch.tensor([0.7, 0.0, -1.2, 0.4, 0.9], dtype=torch.float64, device=at(backend)).requires_grad_()

    def run(x: Tensor) -> Tensor:
        return how[0](x, first, count, exclusive=how[1])

    with dispatch.force(backend):
        assert torch.autograd.gradcheck(run, values)
        assert torch.autograd.gradgradcheck(run, values)


@pytest.mark.parametrize("zeros", [(2,), (0,), (5,), (1, 4), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("exclusive", [False, True])
def test_product_gradient_at_zeros_matches_expanded_products(
    backend: dispatch.Backend, exclusive: bool, zeros: tuple[int, ...]
) -> None:
    """Products are expanded without division. Behind a single zero only that zero has a gradient, behind two none."""
    factors = [0.0 if i in zeros else x for i, x in enumerate([0.5, 2.0, -1.5, 0.8, 1.1, 0.9])]
    grad = [1.0, -2.0, 0.5, 3.0, -1.0, 0.7]
    values, g = (torch.tensor(x, dtype=torch.float64, device=at(backend)) for x in (factors, grad))
    first, count = torch.tensor([0], device=at(backend)), torch.tensor([6], device=at(backend))
    with dispatch.force(backend):
        out = running_product(values.requires_grad_(), first, count, exclusive=exclusive)
        (got,) = torch.autograd.grad(out, values, g)
    assert got.tolist() == pytest.approx(slope(factors, grad, exclusive), rel=1e-12)


# Triton's interpreter also computes masked elements, and NumPy warns about them.
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("how", SCANS, ids=IDS)
def test_non_finite_values_stay_on_their_ray(backend: dispatch.Backend, how: tuple[Scan, bool], bad: float) -> None:
    values = torch.full((9,), 2.0)
    values[4] = bad
    first, count = torch.tensor([0, 3, 6]), torch.tensor([3, 3, 3])
    leaf, *rays = (x.to(at(backend)) for x in (values, first, count))
    leaf.requires_grad_()
    with dispatch.force(backend):
        out = how[0](leaf, *rays, exclusive=how[1])
        (grad,) = torch.autograd.grad(out.sum(), leaf)
    assert torch.equal(out.detach().cpu().nan_to_num(7.0), looped(values, first, count, *how).nan_to_num(7.0))
    assert bool(out[[0, 1, 2, 3, 6, 7, 8]].isfinite().all())
    assert bool(grad[[0, 1, 2, 6, 7, 8]].isfinite().all())


@pytest.mark.parametrize("how", SCANS, ids=IDS)
def test_samples_outside_all_rays_are_nan_with_zero_gradient(backend: dispatch.Backend, how: tuple[Scan, bool]) -> None:
    """Rays in any order, with gaps between them."""
    values = torch.arange(1.0, 9.0, device=at(backend)).requires_grad_()
    first, count = (torch.tensor(x, device=at(backend)) for x in ([5, 1], [2, 3]))
    with dispatch.force(backend):
        out = how[0](values, first, count, exclusive=how[1])
        (grad,) = torch.autograd.grad(out[[1, 2, 3, 5, 6]].sum(), values)
    assert out.isnan().tolist() == [True, False, False, False, True, False, False, True]
    expected = looped(values.detach().cpu(), first.cpu(), count.cpu(), *how)
    assert torch.equal(out.detach().cpu().nan_to_num(), expected.nan_to_num())
    assert grad[[0, 4, 7]].tolist() == [0.0, 0.0, 0.0]


def test_empty_inputs_give_empty_results(backend: dispatch.Backend) -> None:
    none = torch.zeros(0, dtype=torch.int64, device=at(backend))
    with dispatch.force(backend):
        for scan in (running_sum, running_product):
            assert scan(torch.zeros(0, device=at(backend)), none, none).shape == (0,)
            assert scan(torch.zeros(0, 4, device=at(backend)), none, none).shape == (0, 4)
            assert scan(torch.zeros(3, 0, device=at(backend)), none, none).shape == (3, 0)
            empty = torch.zeros(0, device=at(backend)).requires_grad_()
            rays = torch.zeros(2, dtype=torch.int64, device=at(backend))
            assert torch.autograd.grad(scan(empty, rays, rays).sum(), empty)[0].shape == (0,)


def test_results_do_not_depend_on_threads() -> None:
    torch.manual_seed(3)
    first, count = ragged(700)
    values = torch.rand(int(count.sum()))
    results = []
    for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(threads)
        try:
            with dispatch.force("cpu"):
                results.append([scan(values, first, count, exclusive=ex) for scan, ex in SCANS])
        finally:
            numba.set_num_threads(1)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_float16_values_are_summed_in_float32() -> None:
    """4,000 ones: float16 alone would stop at 2,048."""
    values = torch.ones(4000, dtype=torch.float16, requires_grad=True)
    out = running_sum(values, torch.tensor([0]), torch.tensor([4000]))
    assert float(out[-1].detach()) == 4000
    (grad,) = torch.autograd.grad(out[-1], values)
    assert grad.dtype == torch.float16
    assert bool((grad == 1).all())


@pytest.mark.parametrize(
    ("first", "count", "words"),
    [
        ([0, 2], [2, 4], "within the 5 samples: ray 1 has `first` 2 and `count` 4"),
        ([-1, 2], [2, 3], "ray 0 has `first` -1"),
        ([0, 2], [2, -1], "ray 1 has `first` 2 and `count` -1"),
        ([0, 2**62], [2, 3], "within the 5 samples: ray 1"),
        ([0, 2], [2], r"`count` must have shape \[2\], got \[1\]"),
        ([0.0, 2.0], [2, 3], "`first` must be integers"),
    ],
)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_invalid_rays_raise(backend: dispatch.Backend, first: list[int], count: list[int], words: str) -> None:
    with dispatch.force(backend), pytest.raises(ConfigError, match=words):
        running_sum(torch.ones(5), torch.tensor(first), torch.tensor(count))


@pytest.mark.parametrize("values", [torch.ones(2, 3, 4), torch.ones(5, dtype=torch.int64), torch.tensor(1.0)], ids=str)
def test_invalid_shape_or_dtype_of_values_raises(values: Tensor) -> None:
    with pytest.raises(ConfigError, match=r"floating-point of shape \[B\] or \[B, C\]"):
        running_sum(values, torch.tensor([0]), torch.tensor([1]))


def test_triton_clips_rays_to_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking the rays would synchronize with the device, so the kernel clips them instead."""
    pytest.importorskip("triton")
    monkeypatch.setattr(checks, "readable", lambda _: False)  # the interpreter's tensors are on the CPU
    values, first, count = torch.ones(4), torch.tensor([0, 2]), torch.tensor([2, 100])
    with dispatch.force("gpu"):
        out = running_sum(*(x.to(TRITON_DEVICE) for x in (values, first, count)))
    assert out.tolist() == [1.0, 2.0, 1.0, 2.0]


numbers = st.lists(
    st.lists(st.floats(-4, 4, allow_nan=False, allow_subnormal=False), max_size=7), min_size=1, max_size=6
)


def packed(rays: list[list[float]]) -> tuple[Tensor, Tensor, Tensor]:
    count = torch.tensor([len(ray) for ray in rays])
    return torch.tensor([x for ray in rays for x in ray], dtype=torch.float64), count.cumsum(0) - count, count


@given(numbers, st.floats(-3, 3), st.booleans())
@settings(deadline=None, max_examples=40)
def test_sums_are_linear(rays: list[list[float]], factor: float, exclusive: bool) -> None:
    x, first, count = packed(rays)
    y = x.flip(0) + 1
    left = running_sum(factor * x + y, first, count, exclusive=exclusive)
    right = factor * running_sum(x, first, count, exclusive=exclusive) + running_sum(
        y, first, count, exclusive=exclusive
    )
    assert torch.allclose(left, right, atol=1e-9)


@given(numbers)
@settings(deadline=None, max_examples=40)
def test_inclusive_scan_combines_exclusive_scan_and_own_value(rays: list[list[float]]) -> None:
    x, first, count = packed(rays)
    sums, before = running_sum(x, first, count), running_sum(x, first, count, exclusive=True)
    assert torch.allclose(sums - x, before, atol=1e-9)
    products, before = running_product(x, first, count), running_product(x, first, count, exclusive=True)
    assert torch.allclose(before * x, products, rtol=1e-12)


@given(numbers, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_result_of_a_ray_does_not_depend_on_the_order_of_rays(rays: list[list[float]], random: object) -> None:
    """Shuffled rays keep their results."""
    order = list(range(len(rays)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for scan, exclusive in SCANS:
        x, first, count = packed(rays)
        parts = scan(x, first, count, exclusive=exclusive).split(count.tolist())
        y, other_first, other_count = packed([rays[i] for i in order])
        other = scan(y, other_first, other_count, exclusive=exclusive).split(other_count.tolist())
        for place, i in enumerate(order):
            assert torch.equal(parts[i], other[place])


@given(st.lists(st.floats(-4, 4, allow_subnormal=False), min_size=1, max_size=12), st.integers(0, 12))
@settings(deadline=None, max_examples=40)
def test_scan_of_a_split_ray_continues_from_its_first_part(ray: list[float], cut: int) -> None:
    """The scan of the second part, combined with the total of the first, equals the scan of the whole ray."""
    cut = min(cut, len(ray))
    x, first, count = packed([ray])
    _, two_first, two_count = packed([ray[:cut], ray[cut:]])
    for scan, exclusive in SCANS:
        whole, parts = scan(x, first, count, exclusive=exclusive), scan(x, two_first, two_count, exclusive=exclusive)
        assert torch.equal(whole[:cut], parts[:cut])
        if scan is running_sum:
            assert torch.allclose(whole[cut:], x[:cut].sum() + parts[cut:], atol=1e-9)
        else:
            assert torch.allclose(whole[cut:], x[:cut].prod() * parts[cut:], rtol=1e-9)
