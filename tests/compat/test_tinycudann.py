"""The PyTorch API of tiny-cuda-nn: networks against plain loops, modules, errors, and the documentation page."""

from __future__ import annotations

import copy
import math
import pickle
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine.compat import tinycudann as tcnn
from raymine.compat.tinycudann import networks
from raymine.compat.tinycudann.precision import with_loss_scale
from raymine.errors import ConfigError
from raymine.kernels import dispatch
from support.paths import DOCS, TESTS

PAGE = DOCS / "toolkit" / "tinycudann.md"
GRID = {"otype": "HashGrid", "n_levels": 8, "log2_hashmap_size": 8, "base_resolution": 4, "per_level_scale": 1.4}
MLP = {"otype": "FullyFusedMLP", "n_neurons": 16, "n_hidden_layers": 2}


@pytest.fixture
def half_on_cpu() -> Iterator[None]:
    tcnn.set_cpu_dtype(torch.float16)
    yield
    tcnn.set_cpu_dtype(torch.float32)


# Networks

FUNCTIONS = {
    "None": lambda v: v,
    "ReLU": lambda v: max(v, 0.0),
    "LeakyReLU": lambda v: v if v > 0 else 0.01 * v,
    "Exponential": math.exp,
    "Sine": math.sin,
    "Sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "Squareplus": lambda v: (10 * v + math.sqrt(100 * v * v + 4)) / 20,
    "Softplus": lambda v: math.log(1 + math.exp(10 * v)) / 10,
    "Tanh": math.tanh,
}


def by_loops(row: list[float], params: list[float], hidden: str, output: str) -> list[float]:
    """A network with 16 padded inputs, one hidden layer of 16 and 2 outputs, as plain loops."""
    x = row + [1.0] * (16 - len(row))
    first, last = params[:256], params[256:]
    h = [FUNCTIONS[hidden](sum(first[16 * o + i] * x[i] for i in range(16))) for o in range(16)]
    return [FUNCTIONS[output](sum(last[16 * o + i] * h[i] for i in range(16))) for o in range(2)]


@pytest.mark.parametrize("otype", ["FullyFusedMLP", "cutlassmlp"])
@pytest.mark.parametrize("activation", list(FUNCTIONS))
def test_every_activation(activation: str, otype: str) -> None:
    for hidden, output in ((activation, "None"), ("Tanh", activation)):
        config = {"otype": otype, "n_neurons": 16, "n_hidden_layers": 1, "activation": hidden.upper(),
                  "output_activation": output.lower()}  # fmt: skip
        network = tcnn.Network(3, 2, config, seed=5).to("cpu")
        assert network.params.shape == (16 * 16 + 16 * 16,)
        with torch.no_grad():
            network.params.mul_(0.5)
        rows = [[0.3, -0.8, 0.5], [0.0, 1.0, -0.2]]
        expected = [by_loops(row, network.params.tolist(), hidden, output) for row in rows]
        assert torch.allclose(network(torch.tensor(rows)), torch.tensor(expected), atol=1e-5)


def test_aliases_and_defaults_of_networks() -> None:
    expected = {"activation": "ReLU", "output_activation": "None", "n_neurons": 128, "n_hidden_layers": 5}
    for name in ("MLP", "CutlassMLP", None):
        config = {} if name is None else {"otype": name}
        assert networks.build(3, 1, config).hyperparams() == {"otype": "CutlassMLP", **expected}
    for name in ("MegakernelMLP", "fullyfusedmlp"):
        assert networks.build(3, 1, {"otype": name}).hyperparams() == {"otype": "FullyFusedMLP", **expected}


@pytest.mark.parametrize(("neurons", "layers"), [(20, 0), (20, 1), (160, 2), (8, 7)])
def test_cutlass_takes_any_width(neurons: int, layers: int) -> None:
    config = {"otype": "CutlassMLP", "n_neurons": neurons, "n_hidden_layers": layers}
    network = tcnn.Network(18, 20, config).to("cpu")
    widths = [32, *[neurons] * layers, 32]
    assert network.params.numel() == sum(a * b for a, b in pairwise(widths))
    x, start = torch.randn(5, 18), 0
    h = torch.cat([x, torch.ones(5, 14)], 1)
    for before, after in pairwise(widths):
        h = h @ network.params[start : start + after * before].view(after, before).T
        start += after * before
        h = h.relu() if start < network.params.numel() else h
    assert torch.allclose(network(x), h[:, :20], atol=1e-5)


def test_network_passes_gradcheck_and_gradgradcheck() -> None:
    network = networks.build(
        3, 2, {"otype": "CutlassMLP", "n_neurons": 4, "n_hidden_layers": 2, "activation": "Softplus"}
    )
    params = torch.randn(network.n_params, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, p: network(x, p, False, 1.0), (x, params), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x, p: network(x, p, False, 1.0), (x, params), fast_mode=True)


def test_networks_too_large_for_the_kernel_have_scaled_gradients_in_half_precision() -> None:
    """Calls the code path of large networks on a GPU directly."""
    network = networks.build(
        3, 2, {"otype": "CutlassMLP", "n_neurons": 160, "n_hidden_layers": 1, "activation": "Tanh"}
    )
    params = torch.randn(network.n_params, requires_grad=True)
    x, tiny = torch.randn(5, 16, requires_grad=True), torch.full((5, 2), 2.0**-23)
    inputs = (x, *network.layers(params))
    scaled, unscaled = (
        with_loss_scale(network._halves, scale, *inputs, exact=network._products) for scale in (128.0, 1.0)
    )
    assert scaled.dtype == torch.float32
    got = torch.autograd.grad(scaled, (x, params), tiny, retain_graph=True)
    expected = torch.autograd.grad(network(x, params, False, 1.0), (x, params), tiny)
    lost = torch.autograd.grad(unscaled, (x, params), tiny)
    for one, other, bad in zip(got, expected, lost, strict=True):
        error, size, without = (v.norm().item() for v in (one - other, other, bad - other))
        assert error < 2e-2 * size < 0.5 * without
    seconds = []
    for out in (scaled, network(x, params, False, 1.0)):
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), params)[0])
    assert torch.allclose(*seconds, rtol=1e-4, atol=1e-4)


def test_the_fused_kernel_agrees(half_on_cpu: None) -> None:
    """The code path of a GPU; without a GPU it runs in Triton's interpreter."""
    pytest.importorskip("triton")
    made = tcnn.NetworkWithInputEncoding(3, 4, GRID, {**MLP, "output_activation": "Sigmoid"}).to("cpu")
    if not dispatch.interpreted():
        made = made.to("cuda")
    with torch.no_grad():
        made.params[made.native_tcnn_module.network.n_params :] *= 3000  # type: ignore[union-attr]
    x, grad = torch.rand(20, 3, device=made.params.device), torch.randn(20, 4, device=made.params.device).half()
    results = []
    for backend in ("gpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            inputs = x.clone().requires_grad_()
            out = made(inputs)
            results.append((out.float().detach(), *torch.autograd.grad(out, (inputs, made.params), grad)))
    for got, expected in zip(*results, strict=True):
        assert got.dtype == torch.float32
        assert float((got - expected).norm()) < 2e-2 * float(expected.norm())
    with dispatch.force("gpu"):
        assert torch.autograd.grad(made(x[:0]).sum(), made.params)[0].abs().max() == 0
        inputs = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(made(inputs).float().sum(), inputs, create_graph=True)
        seconds = [torch.autograd.grad(slope.square().sum(), made.params)[0]]
    with dispatch.force("reference"):
        (slope,) = torch.autograd.grad(made(inputs).float().sum(), inputs, create_graph=True)
        seconds += [torch.autograd.grad(slope.square().sum(), made.params)[0]]
    assert float((seconds[0] - seconds[1]).norm()) < 2e-2 * float(seconds[1].norm())
    network = made.native_tcnn_module.network
    assert network is not None
    assert network.fits
    assert not networks.build(3, 1, {"otype": "CutlassMLP", "n_neurons": 160}).fits
    assert not networks.build(3, 1, {"otype": "CutlassMLP", "n_hidden_layers": 6}).fits


# Modules


def test_an_encoding_then_a_network_is_both_in_one() -> None:
    both = tcnn.NetworkWithInputEncoding(3, 5, GRID, MLP, seed=3).to("cpu")
    encoding, network = tcnn.Encoding(3, GRID).to("cpu"), tcnn.Network(16, 5, MLP, seed=3).to("cpu")
    assert both.params.numel() == encoding.params.numel() + network.params.numel()
    assert torch.equal(both.params[: network.params.numel()], network.params)
    with torch.no_grad():
        encoding.params.copy_(both.params[network.params.numel() :])
    x = torch.rand(7, 3)
    assert torch.equal(both(x), network(encoding(x)))
    assert both(x).shape == (7, 5)


def test_padding_of_each_encoding() -> None:
    """Encodings are padded with ones at the end, grids with zeros at the end, spherical harmonics with ones at the
    start. A composite pads its last nested encoding."""
    x = torch.rand(2, 3)

    def padded(config: dict[str, Any]) -> tuple[Tensor, Tensor]:
        made = tcnn.Encoding(3, config).to("cpu")
        return made(x), made.native_tcnn_module.encoder.padded(x, made.params, False, None, 16)

    own, wide = padded({"otype": "Frequency", "n_frequencies": 1})
    assert torch.equal(wide, torch.cat([own, torch.ones(2, 10)], 1))
    own, wide = padded({**GRID, "n_levels": 5})
    assert torch.equal(wide, torch.cat([own, torch.zeros(2, 6)], 1))
    own, wide = padded({"otype": "SphericalHarmonics", "degree": 3})
    assert torch.equal(wide, torch.cat([torch.ones(2, 7), own], 1))
    nested = [{"otype": "Identity", "n_dims_to_encode": 0}, {"otype": "SphericalHarmonics", "degree": 2}]
    own, wide = padded({"otype": "Composite", "nested": nested})
    assert torch.equal(wide, torch.cat([torch.ones(2, 12), own], 1))


def test_initial_parameters() -> None:
    made = tcnn.NetworkWithInputEncoding(3, 3, GRID, {**MLP, "n_neurons": 64})
    first, rest = made.params[: 64 * 16].detach().cpu(), made.params[64 * 16 + 64 * 64 + 16 * 64 :].detach().cpu()
    for part, bound in ((first, math.sqrt(6 / 80)), (rest, 1e-4)):
        assert bound * 0.98 < part.abs().max().item() <= bound
        assert part.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert abs(part.mean().item()) < 0.1 * bound
    sine = tcnn.Network(16, 16, {**MLP, "otype": "CutlassMLP", "activation": "Sine"}).params.detach().cpu()
    assert 30 / 16 * 0.9 < sine[:256].abs().max().item() <= 30 / 16
    assert math.sqrt(6 / 16) * 0.9 < sine[256:].abs().max().item() <= math.sqrt(6 / 16)


def test_seeds_are_all_that_decides() -> None:
    torch.manual_seed(0)
    one = tcnn.Encoding(3, GRID, seed=7).params
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(tcnn.Encoding(3, GRID, 7).params, one)
    assert not torch.equal(tcnn.Encoding(3, GRID, seed=8).params, one)
    assert tcnn.Encoding(3, GRID).seed == 1337
    torch.manual_seed(0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_state_pickles_and_copies() -> None:
    made = tcnn.NetworkWithInputEncoding(3, 2, GRID, MLP, seed=1).to("cpu")
    x = torch.rand(4, 3)
    assert list(made.state_dict()) == ["params"]
    other = tcnn.NetworkWithInputEncoding(3, 2, GRID, MLP, seed=2).to("cpu")
    assert not torch.equal(other(x), made(x))
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), made(x))
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert torch.equal(again(x), made(x))
        assert repr(again) == repr(made)
        assert again.seed == 1
    encoding = pickle.loads(pickle.dumps(tcnn.Encoding(3, GRID, dtype=torch.float16).to("cpu")))
    assert encoding.dtype == torch.float16
    assert encoding(x).dtype == torch.float16


def test_attributes_and_repr() -> None:
    made = tcnn.NetworkWithInputEncoding(3, 2, GRID, MLP).to("cpu")
    assert isinstance(made, tcnn.Module)
    assert isinstance(made, torch.nn.Module)
    assert (made.n_input_dims, made.n_output_dims, made.seed, made.dtype, made.loss_scale) == (
        3,
        2,
        1337,
        torch.float32,
        1,
    )
    assert made.encoding_config is GRID
    assert made.network_config is MLP
    assert [name for name, _ in made.named_parameters()] == ["params"]
    assert made.params.dtype == torch.float32
    assert made.params.ndim == 1
    text = repr(made)
    for piece in (
        "NetworkWithInputEncoding(n_input_dims=3, n_output_dims=2, seed=1337, dtype=torch.float32",
        "n_neurons",
    ):
        assert piece in text
    native = made.native_tcnn_module
    assert (native.n_input_dims(), native.n_output_dims(), native.n_params()) == (3, 16, made.params.numel())
    assert native.name() == "NetworkWithInputEncoding"
    assert torch.equal(native.initial_params(1337), made.params)
    made.loss_scale = 64
    assert made.loss_scale == 64.0
    with pytest.raises(ConfigError, match="`loss_scale` must be above 0"):
        made.loss_scale = 0
    made.jit_fusion = tcnn.supports_jit_fusion()
    assert made.jit_fusion is False
    tcnn.free_temporary_memory()


@pytest.mark.parametrize("n", [0, 1, 255, 257])
def test_any_number_of_rows(n: int) -> None:
    for made in (
        tcnn.Encoding(3, GRID),
        tcnn.Encoding(3, {"otype": "SphericalHarmonics"}),
        tcnn.Network(3, 2, MLP),
        tcnn.NetworkWithInputEncoding(3, 2, GRID, MLP),
    ):
        x = torch.rand(n, 6, dtype=torch.float64)[:, ::2].requires_grad_()
        out = made.to("cpu")(x)
        assert out.shape == (n, made.n_output_dims)
        assert out.dtype == torch.float32
        grads = torch.autograd.grad(out.sum(), (x, made.params), allow_unused=made.params.numel() == 0)
        assert grads[0].shape == (n, 3)


def test_types_of_outputs(half_on_cpu: None) -> None:
    x = torch.rand(3, 3).half()
    assert tcnn.Network(3, 2, MLP).to("cpu")(x).dtype == torch.float16
    assert tcnn.Encoding(3, {"otype": "Frequency"}).to("cpu")(x).dtype == torch.float16
    assert tcnn.Encoding(3, GRID, dtype=torch.float32).to("cpu")(x).dtype == torch.float32
    tcnn.set_cpu_dtype(torch.float32)
    assert tcnn.Encoding(3, GRID).to("cpu")(x).dtype == torch.float32
    with pytest.raises(ConfigError, match=r"`dtype` must be torch\.float32 or torch\.float16"):
        tcnn.set_cpu_dtype(torch.float64)


@pytest.mark.gpu
def test_a_gpu_has_half_precision_and_parameters_from_the_start() -> None:
    made = tcnn.NetworkWithInputEncoding(3, 2, GRID, MLP)
    assert made.params.is_cuda
    assert made(torch.rand(5, 3, device="cuda")).dtype == torch.float16
    assert made.loss_scale == 128
    with pytest.warns(UserWarning, match="moved to cuda"):
        assert made(torch.rand(5, 3)).is_cuda
    with pytest.raises(ConfigError, match="Inputs are on cuda"):
        made.to("cpu")(torch.rand(5, 3, device="cuda"))
    wide = tcnn.Network(3, 2, {"otype": "CutlassMLP", "n_neurons": 160})
    x = torch.rand(300, 3, device="cuda")
    out = wide(x)
    assert out.dtype == torch.float16
    assert torch.allclose(out.float().cpu(), wide.to("cpu")(x.cpu()), atol=2e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tcnn.Encoding(3, {"otype": "Wavelet"}), "no encoding with the `otype` 'Wavelet'.*Composite"),
        (lambda: tcnn.Encoding(3, "HashGrid"), "An encoding must be described by a dictionary"),  # type: ignore[arg-type]
        (lambda: tcnn.Encoding(0, GRID), "`n_input_dims` must be a whole number above 0, got 0"),
        (lambda: tcnn.Encoding(3, GRID, dtype=torch.bfloat16), "`dtype` of an encoding must be"),
        (lambda: tcnn.Encoding(3, {"otype": "SphericalHarmonics", "degree": 9}), r"`degree` .* in 1 .. 8, got 9"),
        (lambda: tcnn.Encoding(2, {"otype": "SphericalHarmonics"}), "SphericalHarmonics encodes 3 dimensions"),
        (lambda: tcnn.Encoding(2, {"otype": "OneBlob", "n_bins": 6}), "`n_bins` of OneBlob must be a power of two"),
        (lambda: tcnn.Encoding(2, {"otype": "Frequency", "n_frequencies": "x"}), "`n_frequencies` of Frequency"),
        (lambda: tcnn.Encoding(2, {"otype": "TriangleWave", "n_frequencies": 0}), "`n_frequencies` of TriangleWave"),
        (lambda: tcnn.Encoding(2, {"otype": "Identity", "scale": math.nan}), "`scale` of Identity must be a finite"),
        (lambda: tcnn.Encoding(2, {"otype": "Composite"}), "`nested` of Composite must be a list"),
        (lambda: tcnn.Encoding(2, {"otype": "Composite", "nested": []}), "at least one dimension"),
        (lambda: tcnn.Encoding(2, {"otype": "Composite", "nested": [{}, {}]}), "may be left out of one"),
        (lambda: tcnn.Encoding(2, {"otype": "Composite", "nested": [{"n_dims_to_encode": 3}]}), "more than 2"),
        (
            lambda: tcnn.Encoding(
                2, {"otype": "Composite", "nested": [{"n_dims_to_encode": 2, "dims_to_encode_begin": 1}]}
            ),
            "dimensions 1 .. 2, but there are 2",
        ),
        (
            lambda: tcnn.Encoding(3, {"otype": "Composite", "reduction": "Sum", "nested": [
                {"n_dims_to_encode": 1, "otype": "Identity"}, {"otype": "Identity"}]}),
            "`reduction` Sum needs nested encodings of one width",
        ),
        (
            lambda: tcnn.Encoding(3, {"otype": "Composite", "reduction": "Max", "nested": [{}]}),
            "`reduction` of Composite must be one of Concatenation, Sum, Product",
        ),
        (lambda: tcnn.Network(3, 2, {"otype": "CutlassResNet"}), "no network with the `otype` 'CutlassResNet'"),
        (lambda: tcnn.Network(3, 0, MLP), "`n_output_dims` must be a whole number above 0, got 0"),
        (lambda: tcnn.Network(3, 2, {**MLP, "n_neurons": 48}), "`n_neurons` of FullyFusedMLP must be 16"),
        (lambda: tcnn.Network(3, 2, {**MLP, "n_hidden_layers": 0}), "`n_hidden_layers` of FullyFusedMLP"),
        (lambda: tcnn.Network(3, 2, {**MLP, "activation": "GELU"}), "`activation` of FullyFusedMLP must be"),
        (lambda: tcnn.Network(3, 2, {**MLP, "output_activation": "Softmax"}), "`output_activation` of FullyFusedMLP"),
        (lambda: tcnn.Network(3, 2, {**MLP, "feedback_alignment": True}), "`feedback_alignment` of FullyFusedMLP"),
        (lambda: tcnn.Network(3, 2, MLP).to("cpu")(torch.rand(3)), r"Inputs must have shape \[n, 3\], got \[3\]"),
        (lambda: tcnn.Network(3, 2, MLP).to("cpu")(torch.rand(3, 4)), r"Inputs must have shape \[n, 3\], got \[3, 4\]"),
    ],
)  # fmt: skip
def test_errors_name_the_option(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_unknown_options_warn() -> None:
    with pytest.warns(UserWarning, match=r"HashGrid has no option `n_level`; ignored\. It reads .*n_levels"):
        tcnn.Encoding(3, {**GRID, "n_level": 4})
    with pytest.warns(UserWarning, match="FullyFusedMLP has no option `dropout`"):
        tcnn.Network(3, 2, {**MLP, "dropout": 0.1})


def test_non_finite_inputs_give_nan_in_their_own_row_only() -> None:
    made = tcnn.NetworkWithInputEncoding(3, 2, GRID, {**MLP, "activation": "Tanh"}).to("cpu")
    x = torch.full((3, 3), 0.5)
    x[1, 2] = math.nan
    out = made(x)
    assert bool(out[1].isnan().all())
    assert bool(out[::2].isfinite().all())
    plain = tcnn.Encoding(1, {"otype": "Frequency"}).to("cpu")
    assert bool(plain(torch.tensor([[math.nan], [math.inf]])).isnan().all())


def test_training_fits_an_image() -> None:
    grid = {"otype": "HashGrid", "n_levels": 8, "log2_hashmap_size": 12, "base_resolution": 4, "per_level_scale": 1.5}
    made = tcnn.NetworkWithInputEncoding(2, 1, grid, {**MLP, "n_neurons": 32}).to("cpu")
    generator = torch.Generator().manual_seed(0)
    optimiser, losses = torch.optim.Adam(made.parameters(), 1e-2), []
    for _ in range(100):
        x = torch.rand(512, 2, generator=generator)
        target = (torch.sin(9 * x[:, :1]) * torch.cos(7 * x[:, 1:]) > 0).float()
        loss = (made(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.1 * losses[0]


# Installation and documentation


@pytest.fixture
def no_tinycudann(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tinycudann", "tinycudann.modules"):
        monkeypatch.setitem(sys.modules, name, None)  # so that monkeypatch restores the original entry
        del sys.modules[name]


def test_install(no_tinycudann: None) -> None:
    assert tcnn.install() is tcnn
    import tinycudann
    from tinycudann.modules import Encoding

    assert tinycudann is tcnn
    assert Encoding is tcnn.Encoding
    assert tcnn.install() is tcnn


def test_install_refuses_to_replace_another(no_tinycudann: None) -> None:
    theirs = ModuleType("tinycudann")
    theirs.__file__ = "/somewhere/tinycudann/__init__.py"
    sys.modules["tinycudann"] = theirs
    with pytest.raises(ConfigError, match=r"`tinycudann` has been imported already, from /somewhere.*force=True"):
        tcnn.install()
    assert sys.modules["tinycudann"] is theirs
    assert tcnn.install(force=True) is sys.modules["tinycudann"] is tcnn


def test_documentation_examples_run_and_named_tests_exist(no_tinycudann: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    # Run on the CPU even if there is a GPU.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for block in blocks:
        exec(block, {})
    files = ("compat/test_tinycudann.py", "compat/tinycudann/test_grids.py", "kernels/test_hash_grid.py")
    tests = {name for file in files for name in re.findall(r"def (test_\w+)", (TESTS / file).read_text())}
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named
    assert named <= tests
