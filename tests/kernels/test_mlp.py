"""Small MLPs: one by hand, gradcheck of the reference, and Triton against it, with every gradient."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.mlp import reference
from raymine.kernels.mlp.op import Activation, Precision, mlp, mlp_flat
from support.device import TRITON_DEVICE, requires_gpu

pytestmark = pytest.mark.usefixtures("poisoned")

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

TOLERANCE = {"fp32": (1e-5, 1e-5), "fp16": (3e-3, 1e-2), "bf16": (2e-2, 4e-2)}
"""Relative error by norm of outputs and of gradients. The interpreter truncates to bfloat16 instead of rounding, which
doubles the error of a GPU."""


@pytest.fixture
def gpu():  # type: ignore[no-untyped-def]
    """The Triton kernels."""
    pytest.importorskip("triton")
    from raymine.kernels.mlp import gpu

    return gpu


KINK = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 4e-2}
"""Smallest magnitude of pre-activations: closer to 0, rounding may flip the slope of a relu."""


def network(
    widths: list[int],
    n: int,
    precision: str = "fp16",
    dtype: torch.dtype = torch.float32,
    hidden: str = "relu",
    size: float = 1.0,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Inputs [n, I] and layers, both non-contiguous, and an upstream gradient [n, O]."""
    layers = [torch.randn(b, a, device=TRITON_DEVICE).T * size * a**-0.5 for a, b in pairwise(widths)]
    inputs = torch.randn(200 * n, widths[0], device=TRITON_DEVICE).to(dtype)
    x, clear = inputs.float(), torch.ones(len(inputs), dtype=torch.bool, device=TRITON_DEVICE)
    for layer in layers:
        x = x @ layer
        clear &= (x.abs() > KINK[precision] * size).all(-1)
        x = reference.ACTIVATIONS[hidden](x)
    inputs = inputs[clear][:n]
    assert len(inputs) == n
    inputs = torch.repeat_interleave(inputs, 2, 1)[:, ::2].requires_grad_()
    return inputs, [w.requires_grad_() for w in layers], torch.randn(n, widths[-1], device=TRITON_DEVICE)


def both(inputs: Tensor, layers: list[Tensor], grad: Tensor, **options: str) -> list[list[Tensor]]:
    """Output, gradient of the inputs and of every layer: from the kernels, and from the reference."""
    results = []
    for backend in ("gpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            out = mlp(inputs, layers, **options)  # type: ignore[arg-type]
            grads = torch.autograd.grad(out, [inputs, *layers], grad.to(out.dtype))
            results.append([out.detach(), *grads])
    return results


def error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-6))


def assert_close(got: list[Tensor], expected: list[Tensor], precision: str) -> None:
    # With few samples all outputs may be sums that cancel: the worst of 800 single samples is off by 3.8e-3 in fp16.
    room = 4 if len(got[0]) < 8 else 1
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        name = ("out", "d inputs", *(f"d layers[{m}]" for m in range(len(got) - 2)))[k]
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        assert error(a, b) < room * TOLERANCE[precision][k > 0], name


def test_mlp_matches_hand_computed_output_and_gradients() -> None:
    """(1, 2) through [[1, -1], [1, 1]] is (3, 1); relu keeps both; through (2, -3) it is 3."""
    x = torch.tensor([[1.0, 2.0], [-2.0, 1.0]], requires_grad=True)
    first = torch.tensor([[1.0, -1.0], [1.0, 1.0]], requires_grad=True)
    second = torch.tensor([[2.0], [-3.0]], requires_grad=True)
    out = mlp(x, [first, second])
    assert out.tolist() == [[3.0], [-9.0]]  # (-2, 1) gives (-1, 3), of which relu leaves (0, 3)
    to_x, to_first, to_second = torch.autograd.grad(out.sum(), [x, first, second])
    assert to_second.tolist() == [[3.0], [4.0]]  # hidden (3, 1) and (0, 3), added up
    assert to_first.tolist() == [[2.0, -3.0 + 6.0], [4.0, -6.0 - 3.0]]  # the second sample reaches unit 1 only
    assert to_x.tolist() == [[2.0 + 3.0, 2.0 - 3.0], [3.0, -3.0]]


def test_activations_match_hand_computed_values() -> None:
    at = {
        "none": (-0.2, -0.2),
        "relu": (-0.2, 0.0),
        "leaky_relu": (-0.2, -0.002),
        "sigmoid": (math.log(3.0), 0.75),
        "exponential": (math.log(3.0), 3.0),
        "squareplus": (0.15, 0.2),  # K x = 3/2: (3/2 + 5/2) / 20
        "softplus": (math.log(3.0) / 10, math.log(4.0) / 10),
        "tanh": (math.log(2.0), 0.6),
        "sine": (math.pi / 6, 0.5),
    }
    assert set(at) == set(ACTIVATIONS)
    for name, (x, y) in at.items():
        got = mlp(torch.tensor([[x]]), [torch.ones(1, 1)], output=name)  # type: ignore[arg-type]
        assert got.item() == pytest.approx(y, abs=1e-6), name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_reference_passes_gradcheck(name: Activation) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    # Small, so that exponentials of exponentials stay smooth enough for finite differences.
    layers = [
        (torch.randn(*s, dtype=torch.float64) * (0.2 if name == "exponential" else 0.4)).requires_grad_()
        for s in ((3, 5), (5, 4), (4, 2))
    ]
    for hidden, output in ((name, "none"), ("tanh", name)):
        assert torch.autograd.gradcheck(lambda x, *w, h=hidden, o=output: reference.mlp(x, w, h, o), (x, *layers))
        assert torch.autograd.gradcheck(lambda x, *w, h=hidden, o=output: mlp(x, w, hidden=h, output=o), (x, *layers))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("widths", "n", "precision"),
    [
        ([32, 64, 64, 16], 130, "fp16"),
        ([3, 16, 1], 63, "fp16"),
        ([16, 24, 24, 3], 65, "bf16"),
        ([40, 64, 64, 64, 16], 64, "fp16"),
        ([40, 24, 64, 16, 3], 65, "fp32"),  # hidden layers that differ in width
        ([32, 128, 3], 1, "fp16"),
        ([16, 128, 128, 1], 65, "fp32"),
        ([20, 5], 65, "fp16"),
        ([16, 16, 24, 16, 20, 3], 40, "fp32"),
        ([3, 16, 16, 24, 16, 20, 3], 33, "fp32"),
        ([250, 128, 100], 65, "fp16"),
    ],
    ids=str,
)
def test_gpu_matches_reference_for_every_shape(  # type: ignore[no-untyped-def]
    gpu, widths: list[int], n: int, precision: Precision, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For both ways to compute layer gradients: summed in registers, and from activations stored for every sample."""
    if kept:
        monkeypatch.setattr(gpu, "ROOM", 0)
        monkeypatch.setattr(gpu, "SUMS", 0)
    assert_close(*both(*network(widths, n, precision), precision=precision), precision)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 63, 64, 65, 130, 300])
@pytest.mark.parametrize("kept", [False, True])
def test_gpu_matches_reference_for_any_number_of_samples(
    gpu, n: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    if kept:
        monkeypatch.setattr(gpu, "SUMS", 0)
    assert_close(*both(*network([5, 16, 3], n), precision="fp16"), "fp16")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gpu_matches_reference_for_every_activation(gpu, name: Activation, precision: Precision) -> None:  # type: ignore[no-untyped-def]
    widths, n = [6, 20, 16, 3], 70
    # Exponentials of exponentials would leave the range of float16.
    size = 0.3 if name == "exponential" else 1.0
    inner = network(widths, n, precision, hidden=name, size=size)
    assert_close(*both(*inner, hidden=name, output="sigmoid", precision=precision), precision)
    outer = network(widths, n, precision)
    assert_close(*both(*outer, hidden="relu", output=name, precision=precision), precision)


def test_network_size_decides_whether_weights_are_held_and_gradients_summed(gpu) -> None:  # type: ignore[no-untyped-def]
    for widths, held, summed in (
        ([32, 64, 64, 16], True, True),
        ([32, 64, 64, 64, 3], True, True),
        ([32, 128, 128, 16], True, False),
        ([128, 128, 128, 128], False, False),
    ):
        found = gpu.network_of(tuple(widths), "relu", "none", "fp16")
        assert (found.held, found.summed) == (held, summed), widths


def test_small_gradients_keep_precision_in_float16(gpu) -> None:  # type: ignore[no-untyped-def]
    """1e-6 keeps 4 bits in float16; multiplied by 128 it keeps all of them."""
    inputs, layers, grad = network([16, 16, 3], 64)
    assert_close(*both(inputs, layers, grad * 1e-6, precision="fp16"), "fp16")


def test_padding_rows_do_not_affect_gradients(gpu) -> None:  # type: ignore[no-untyped-def]
    """A padding row of zeros overflows, since exp(16 exp(0)) is infinite in float16; rows of -1/2 give
    exp(16 exp(-8))."""
    inputs = torch.full((1, 16), -0.5, device=TRITON_DEVICE, requires_grad=True)
    layers = [torch.ones(16, 16, device=TRITON_DEVICE, requires_grad=True) for _ in range(3)]
    grad = torch.ones(1, 16, device=TRITON_DEVICE)
    got, expected = both(inputs, layers, grad, hidden="exponential")
    assert_close(got, expected, "fp16")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warnings in the interpreter
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_input_shows_in_its_row_and_in_layer_gradients(gpu, bad: float) -> None:  # type: ignore[no-untyped-def]
    inputs, layers, grad = network([4, 16, 3], 5)
    inputs.data[2, 1] = bad
    got, _ = both(inputs, layers, grad)
    assert not got[0][2].isfinite().all()
    assert got[0][[0, 1, 3, 4]].isfinite().all()
    assert not got[2].isfinite().all()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_dtypes_equal_those_of_the_inputs(gpu, dtype: torch.dtype, precision: Precision) -> None:  # type: ignore[no-untyped-def]
    inputs, layers, grad = network([7, 16, 3], 40, "bf16", dtype)
    layers = [layers[0].detach().to(torch.bfloat16).requires_grad_(), layers[1]]
    got, expected = both(inputs, layers, grad, precision=precision)
    assert [x.dtype for x in got] == [dtype, dtype, torch.bfloat16, torch.float32]
    # Results and gradients in bfloat16 are as coarse as products in bfloat16.
    assert_close(got, expected, "bf16")


def test_partial_gradients_equal_those_of_a_full_backward(gpu) -> None:  # type: ignore[no-untyped-def]
    inputs, layers, grad = network([5, 16, 16, 2], 70)
    full, _ = both(inputs, layers, grad)
    with dispatch.force("gpu"):
        (to_inputs,) = torch.autograd.grad(mlp(inputs, [w.detach() for w in layers]), [inputs], grad)
        middle = [layers[0].detach(), layers[1], layers[2].detach()]
        (to_middle,) = torch.autograd.grad(mlp(inputs.detach(), middle), [layers[1]], grad)
        out = mlp(inputs.detach(), [w.detach() for w in layers])
    # Each combination is a separate kernel, which may sum in another order.
    assert error(to_inputs, full[1]) < 1e-3
    assert error(to_middle, full[3]) < 1e-3
    assert torch.equal(out, full[0])
    assert not out.requires_grad


def test_results_repeat_bit_for_bit(gpu) -> None:  # type: ignore[no-untyped-def]
    inputs, layers, grad = network([5, 16, 3], 200)
    once, again = both(inputs, layers, grad)[0], both(inputs, layers, grad)[0]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def flat_of(layers: list[Tensor]) -> Tensor:
    """The layers as `mlp_flat` takes them."""
    return torch.cat([layer.detach().T.reshape(-1) for layer in layers]).requires_grad_()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(
    ("widths", "outputs", "n"),
    [([32, 64, 64, 16], 3, 70), ([16, 16], 16, 5), ([32, 16, 16], 1, 0), ([16, 128, 128, 16], 16, 65)],
)
def test_flat_parameters_match_reference_and_layered_network(  # type: ignore[no-untyped-def]
    gpu, widths: list[int], outputs: int, n: int, precision: Precision
) -> None:
    inputs, layers, grad = network(widths, n, precision)
    params = flat_of(layers)
    results = []
    for backend in ("gpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            out = mlp_flat(inputs, params, widths, outputs, hidden="relu", precision=precision)
        results.append([out.detach(), *torch.autograd.grad(out, [inputs, params], grad[:, :outputs])])
    assert_close(*results, precision)
    with dispatch.force("reference"):
        assert torch.allclose(results[1][0], mlp(inputs, layers)[:, :outputs], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flat", [False, True])
def test_second_gradients_match_reference(gpu, flat: bool) -> None:  # type: ignore[no-untyped-def]
    widths = [16, 16, 16]
    inputs, layers, grad = network(widths, 9, "fp32", hidden="tanh")
    own = [flat_of(layers)] if flat else layers
    results = []
    for backend in ("gpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            if flat:
                out = mlp_flat(inputs, own[0], widths, 16, hidden="tanh", precision="fp32")
            else:
                out = mlp(inputs, own, hidden="tanh", precision="fp32")
            (first,) = torch.autograd.grad(out, [inputs], grad, create_graph=True)
            results.append(torch.autograd.grad(first.square().sum(), [inputs, *own]))
    for a, b in zip(*results, strict=True):
        assert error(a, b) < 1e-5


def test_invalid_flat_arguments_raise_config_error() -> None:
    x, params = torch.zeros(2, 16), torch.zeros(16 * 16)
    for message, args in (
        (r"`widths` must be 2 to 7 of 16, .*; got \[16, 24\]", (x, params, [16, 24], 3)),
        (r"`widths` must be .* all alike; got \[16, 16, 32, 16\]", (x, params, [16, 16, 32, 16], 3)),
        (r"`widths` must be 2 to 7 .*; got \[16\]", (x, params, [16], 3)),
        (r"`inputs` must have shape \[n, 32\], got \[2, 16\]", (x, params, [32, 16], 3)),
        (r"`params` must have shape \[512\] on cpu, got \[256\]", (x, params, [16, 32], 3)),
        (r"`outputs` must be in 1 \.\. 16, got 17", (x, params, [16, 16], 17)),
        (
            "must be float32, float16 or bfloat16, got torch.float32 and torch.float64",
            (x, params.double(), [16, 16], 3),
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            mlp_flat(*args)  # type: ignore[arg-type]


@requires_gpu
def test_kernels_are_not_specialized_on_the_number_of_samples(gpu) -> None:  # type: ignore[no-untyped-def]
    from raymine.kernels.mlp import gpu_backward

    for kernel in (gpu._forward, gpu_backward.backward, gpu_backward.outer):
        assert [p.do_not_specialize for p in kernel.params if p.name == "n"] == [True]


def test_invalid_arguments_raise_config_error() -> None:
    x, w = torch.zeros(2, 4), torch.zeros(4, 8)
    bad: list[tuple[str, tuple, dict]] = [
        (r"`inputs` must have shape \[n, 1 to 256\], got \[4\]", (x[0], [w]), {}),
        (r"`inputs` must have shape \[n, 1 to 256\], got \[2, 257\]", (torch.zeros(2, 257), [w]), {}),
        (r"`inputs` must have shape \[n, 1 to 256\], got \[2, 0\]", (x[:, :0], [w]), {}),
        (r"`layers` must hold 1 to 6 matrices, got 0", (x, []), {}),
        (r"`layers` must hold 1 to 6 matrices, got 7", (x, [torch.zeros(4, 4)] * 7), {}),
        (r"`layers\[0\]` must have shape \[4, 1 to 128\], got \[5, 8\]", (x, [torch.zeros(5, 8)]), {}),
        (r"`layers\[0\]` must have shape \[4, 1 to 128\], got \[4\]", (x, [w[:, 0]]), {}),
        (r"`layers\[1\]` must have shape \[8, 1 to 128\], got \[4, 8\]", (x, [w, w]), {}),
        (r"`layers\[1\]` must have shape \[8, 1 to 128\], got \[8, 129\]", (x, [w, torch.zeros(8, 129)]), {}),
        (r"`layers\[0\]` must have shape \[4, 1 to 128\], got \[4, 0\]", (x, [w[:, :0]]), {}),
        ("`inputs` must be float32, float16 or bfloat16, got torch.int64", (x.long(), [w]), {}),
        (r"`layers\[0\]` must be float32 or float16 or bfloat16 with torch.float32 inputs", (x, [w.double()]), {}),
        (r"`layers\[0\]` must be float64 with torch.float64 inputs, got torch.float32", (x.double(), [w]), {}),
        (r"`inputs` is on cpu but `layers\[0\]` is on meta", (x, [w.to("meta")]), {}),
        ("`hidden` must be one of none, relu, .*, got 'gelu'", (x, [w]), {"hidden": "gelu"}),
        ("`output` must be one of none, relu, .*, got 'softmax'", (x, [w]), {"output": "softmax"}),
        ("`precision` must be one of fp32, fp16, bf16, got 'tf32'", (x, [w]), {"precision": "tf32"}),
    ]
    for message, args, options in bad:
        with pytest.raises(ConfigError, match=message):
            mlp(*args, **options)
    with dispatch.force("cpu"), pytest.raises(ConfigError, match="`mlp` has no backend `cpu`"):
        mlp(x, [w])
