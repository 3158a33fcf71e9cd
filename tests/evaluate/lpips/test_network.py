"""LPIPS with random weights, against its definition written out pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raymine.evaluate.lpips.network import LAYERS, SCALE, SHIFT, SMALLEST, Lpips, LpipsNet, shapes_of


def random_weights(net: LpipsNet, seed: int = 0) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes_of(net).items():
        values = torch.randn(shape, generator=made) / math.sqrt(max(1, math.prod(shape[1:])))
        weights[name] = values.abs() if name.startswith("head") else values
    return weights


def convolved(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """[I, H, W] -> [O, h, w], by explicit loops over output pixels."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    k = weight.shape[-1]
    rows, columns = ((size - k) // stride + 1 for size in x.shape[1:])
    out = np.empty((len(weight), rows, columns))
    for i in range(rows):
        for j in range(columns):
            window = x[:, i * stride : i * stride + k, j * stride : j * stride + k]
            out[:, i, j] = np.tensordot(weight, window, 3) + bias
    return out


def pooled(x: np.ndarray, k: int) -> np.ndarray:
    rows, columns = ((size - k) // 2 + 1 for size in x.shape[1:])
    out = np.empty((len(x), rows, columns))
    for i in range(rows):
        for j in range(columns):
            out[:, i, j] = x[:, 2 * i : 2 * i + k, 2 * j : 2 * j + k].max((1, 2))
    return out


def by_hand(net: LpipsNet, weights: dict[str, torch.Tensor], a: np.ndarray, b: np.ndarray) -> float:
    values = {name: tensor.numpy().astype(np.float64) for name, tensor in weights.items()}
    pair = [((2 * image - 1 - np.array(SHIFT)) / np.array(SCALE)).transpose(2, 0, 1) for image in (a, b)]
    total, stage = 0.0, 0
    for i, layer in enumerate(LAYERS[net]):
        if layer.pool:
            pair = [pooled(x, layer.pool) for x in pair]
        kernel, bias = values[f"conv{i}.weight"], values[f"conv{i}.bias"]
        pair = [np.maximum(convolved(x, kernel, bias, layer.stride, layer.padding), 0) for x in pair]
        if layer.ends_stage:
            x, y = (f / (np.sqrt((f**2).sum(0)) + 1e-10) for f in pair)
            total += float((values[f"head{stage}.weight"][:, None, None] * (x - y) ** 2).sum(0).mean())
            stage += 1
    return total


@pytest.mark.parametrize(("net", "size"), [("alex", (35, 43)), ("vgg", (17, 18))])
def test_distance_is_that_of_the_definition(net: LpipsNet, size: tuple[int, int]) -> None:
    weights = random_weights(net)
    rng = np.random.default_rng(1)
    a, b = rng.random((2, *size, 3))
    found = Lpips(net, weights)(torch.from_numpy(a), torch.from_numpy(b))
    assert found == pytest.approx(by_hand(net, weights, a, b), rel=1e-4)
    assert found > 0


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_equal_images_have_distance_zero_and_tiny_ones_have_none(net: LpipsNet) -> None:
    network = Lpips(net, random_weights(net))
    smallest = SMALLEST[net]
    image = torch.rand(smallest, smallest, 3)
    assert network(image, image) == 0.0
    assert math.isnan(network(image[:-1], image[:-1]))


def test_networks_have_the_published_number_of_convolutions_and_stages() -> None:
    for net, convolutions in (("alex", 5), ("vgg", 13)):
        layers = LAYERS[net]  # type: ignore[index]
        assert len(layers) == convolutions
        assert sum(layer.ends_stage for layer in layers) == 5


def test_wrong_weights_and_shapes_are_refused() -> None:
    weights = random_weights("alex")
    with pytest.raises(ValueError, match=r"head4\.weight"):
        Lpips("alex", {**weights, "head4.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"\[H, W, 3\]"):
        Lpips("alex", weights)(torch.rand(40, 40, 4), torch.rand(40, 40, 4))
