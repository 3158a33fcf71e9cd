"""Pixel sampling: probabilities, unbiasing weights, the error map, the edge map, and exact resume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raymine.errors import ConfigError
from raymine.pixels import PixelConfig, Pixels, PixelSampler, draw_uniform
from raymine.pixels.cells import cut
from raymine.pixels.edges import edge_map
from raymine.pixels.error_map import ErrorMap
from support.device import requires_gpu

SIZES = ((5, 7), (4, 3), (1, 1))


class Pictures:
    """An `ImageSource` of images of several sizes, with only what drawing pixels needs."""

    def __init__(self, images: list[np.ndarray]) -> None:
        self.images = images
        self.sizes = np.array([image.shape[:2] for image in images], np.int64)

    def gather(self, image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("drawing pixels reads none of them")

    def image(self, index: int) -> np.ndarray:
        return self.images[index]


def noise(*sizes: tuple[int, int]) -> Pictures:
    rng = np.random.default_rng(1)
    return Pictures([rng.integers(0, 256, (*size, 4), dtype=np.uint8) for size in sizes])


def sampler(policy: str = "error", sizes: tuple[tuple[int, int], ...] = SIZES, **options: object) -> PixelSampler:
    return PixelSampler(PixelConfig(policy=policy, **options), noise(*sizes))  # type: ignore[arg-type]


def every_pixel(sizes: torch.Tensor) -> Pixels:
    """Every pixel of every image once."""
    rows = [(i, y, x) for i, (h, w) in enumerate(sizes.tolist()) for y in range(h) for x in range(w)]
    return Pixels(*torch.tensor(rows).unbind(1))


def number(pixels: Pixels, sizes: torch.Tensor) -> torch.Tensor:
    """[R]: pixels of all images numbered in the order of `every_pixel`."""
    area = sizes.prod(1)
    return (area.cumsum(0) - area)[pixels.image] + pixels.y * sizes[pixels.image, 1] + pixels.x


def difficulty(pixels: Pixels) -> torch.Tensor:
    """[R] a fake error that depends on the pixel and is 0 for some."""
    return ((3 * pixels.image + 5 * pixels.y + 7 * pixels.x) % 11).float() ** 2


def taught(**options: object) -> PixelSampler:
    """A sampler that has observed the difficulty of every pixel."""
    out = sampler(**options)  # type: ignore[arg-type]
    pixels = every_pixel(out.sizes)
    out.observe(pixels, difficulty(pixels))
    return out


def drawn_often(out: PixelSampler, times: int = 60, n: int = 2000) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Numbers of the pixels drawn in many steps, and their weights."""
    draws = [out.draw(n, seed=4, step=step) for step in range(times)]
    places = torch.cat([number(d.pixels, out.sizes) for d in draws])
    return places, None if draws[0].weight is None else torch.cat([d.weight for d in draws if d.weight is not None])


def stated_chance(out: PixelSampler, coverage: float) -> torch.Tensor:
    """Probability of each pixel from the heat s of the images: uniform * (r + (1 - r) s)."""
    area = out.sizes.prod(1)
    heat = torch.cat([out.heat(i).reshape(-1) for i in range(len(out.sizes))]).double()
    even = (1 / (len(area) * area.double())).repeat_interleave(area)
    return even * (coverage + (1 - coverage) * heat)


def test_uniform_policy_equals_draw_uniform_and_keeps_no_state() -> None:
    out = sampler("uniform")
    drawn = out.draw(50, seed=3, step=9)
    expected = draw_uniform(out.sizes, 50, seed=3, step=9)
    assert all(torch.equal(a, b) for a, b in zip(drawn.pixels, expected, strict=True))
    assert drawn.pixels.image[:6].tolist() == [0, 0, 1, 2, 0, 2]
    assert drawn.weight is None
    out.observe(drawn.pixels, torch.ones(50))
    assert not out.learns
    assert out.tensors() == {}
    assert torch.equal(out.heat(1), torch.ones(4, 3))


@pytest.mark.parametrize("policy", ["error", "edges", "error+edges"])
@pytest.mark.parametrize("cells", [1 << 18, 12])
@pytest.mark.parametrize("coverage", [1.0, 0.5, 0.125])
def test_draw_frequencies_and_weights_match_the_mixture(policy: str, cells: int, coverage: float) -> None:
    out = taught(policy=policy, cells=cells, coverage=coverage)
    places, weight = drawn_often(out)
    chance = stated_chance(out, coverage)
    assert float(chance.sum()) == pytest.approx(1, rel=1e-6)
    share = torch.bincount(places, minlength=len(chance)) / len(places)
    assert torch.all((share - chance).abs() < 4.5 * (chance / len(places)).sqrt())
    assert weight is not None
    even = stated_chance(sampler("uniform"), 1.0)
    assert torch.allclose(weight.double(), (even / chance)[places], rtol=1e-5)
    assert float(weight.max()) <= 1 / coverage * (1 + 1e-6)


def test_heat_and_weights_match_hand_computation() -> None:
    out = sampler(sizes=((2, 2), (1, 4)), coverage=0.25)
    pixels = every_pixel(out.sizes)
    out.observe(pixels, torch.tensor([4.0, 0, 0, 0, 1, 1, 1, 1]))
    assert out.heat(0).tolist() == [[4.0, 0.0], [0.0, 0.0]]
    assert out.heat(1).tolist() == [[1.0, 1.0, 1.0, 1.0]]
    drawn = out.draw(4000, seed=0, step=0)
    places = number(drawn.pixels, out.sizes)
    assert drawn.weight is not None
    for place, weight in ((0, 1 / (0.25 + 0.75 * 4)), (1, 4.0), (4, 1.0)):
        assert drawn.weight[places == place].unique().tolist() == pytest.approx([weight], rel=1e-6)
    assert torch.bincount(places)[0] / 4000 == pytest.approx(0.125 * 3.25, abs=0.03)


@pytest.mark.parametrize("policy", ["error", "edges", "error+edges"])
def test_weights_make_the_expected_loss_that_of_uniform_draws(policy: str) -> None:
    out = taught(policy=policy)
    pixels = every_pixel(out.sizes)
    even = stated_chance(sampler("uniform"), 1.0)
    loss = stated_chance(out, 0.0) / even + (number(pixels, out.sizes) % 5)
    truth = float((loss * even).sum())
    places, weight = drawn_often(out)
    assert weight is not None
    values = weight * loss[places]
    error = float(values.std()) / math.sqrt(len(values))
    assert float(values.mean()) == pytest.approx(truth, abs=4 * error)
    # Without weights the mean differs, so the test would notice missing weights.
    assert abs(float(loss[places].mean()) - truth) > 8 * error


def test_coverage_draws_every_pixel_despite_one_huge_error() -> None:
    out = sampler(sizes=((6, 6), (3, 2)), coverage=0.1)
    pixels = every_pixel(out.sizes)
    error = torch.zeros(len(pixels.image))
    error[7] = 1e30
    out.observe(pixels, error)
    places, _ = drawn_often(out, times=30)
    count = torch.bincount(places, minlength=len(error))
    assert bool((count > 0).all())
    assert count[7] / len(places) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_coverage_holds_on_average_for_few_rays(n: int) -> None:
    """With 1 to 3 rays per step, a share of 0.3 is drawn uniformly on average over many steps."""
    out = sampler(sizes=((1, 2),), coverage=0.3)
    out.observe(every_pixel(out.sizes), torch.tensor([0.0, 1.0]))
    easy = torch.cat([out.draw(n, seed=0, step=step).pixels.x for step in range(3000)]) == 0
    assert float(easy.double().mean()) == pytest.approx(0.15, abs=0.015)


def test_without_reweighting_there_are_no_weights() -> None:
    assert taught(reweight=False).draw(10, seed=0, step=0).weight is None


def test_error_map_decay_matches_hand_computation() -> None:
    errors = ErrorMap(3, decay=0.75)

    def observe(cells: list[int], values: list[float]) -> list[float]:
        errors.observe(np.array(cells, np.int64), np.array(values, np.float32))
        return errors.values.tolist()

    assert errors.filled().tolist() == [1, 1, 1]
    assert observe([1], [8.0]) == [-1, 8, -1]
    assert observe([1], [0.0]) == [-1, 6, -1]
    assert observe([0, 1, 0], [1.0, 2.0, 3.0]) == [2, 5, -1]  # the first rays of a cell are averaged equally
    # Two rays of one step: 0.75^2 = 0.5625 of the 5 is kept, and 0.4375 of their mean of 4 is added.
    assert observe([1, 1], [0.0, 8.0]) == [2, 4.5625, -1]
    assert errors.filled().tolist() == [2, 4.5625, 4.5625]


def test_negative_and_non_finite_errors_are_ignored() -> None:
    out = sampler(sizes=((1, 5),))
    pixels = every_pixel(out.sizes)
    out.observe(pixels, torch.tensor([1.0, math.nan, math.inf, -3.0, 2.0]))
    assert out.tensors()["error"].tolist() == [1, -1, -1, -1, 2]
    out.observe(pixels, torch.full((5,), math.nan))
    out.observe(Pixels(*(part[:0] for part in pixels)), torch.zeros(0))
    assert out.tensors()["error"].tolist() == [1, -1, -1, -1, 2]


def test_unseen_cells_have_the_largest_seen_error() -> None:
    out = sampler(sizes=((1, 4),))
    out.observe(Pixels(*torch.tensor([[0, 0], [0, 0], [0, 1]])), torch.tensor([1.0, 3.0]))
    assert out.heat(0).tolist() == [pytest.approx([0.4, 1.2, 1.2, 1.2])]


def test_observe_detaches_errors_and_rejects_wrong_shapes() -> None:
    out = sampler()
    drawn = out.draw(6, seed=0, step=0)
    out.observe(drawn.pixels, torch.ones(6, requires_grad=True) * 2)
    assert not out.tensors()["error"].requires_grad
    with pytest.raises(ConfigError, match=r"`error` must have shape \[6\], one value for each pixel; got \[6, 3\]"):
        out.observe(drawn.pixels, torch.ones(6, 3))


@pytest.mark.parametrize("policy", ["error", "edges", "error+edges"])
def test_zero_errors_and_edges_give_uniform_draws(policy: str) -> None:
    grey = Pictures([np.full((h, w, 4), 90, np.uint8) for h, w in SIZES])
    out = PixelSampler(PixelConfig(policy=policy), grey)  # type: ignore[arg-type]
    pixels = every_pixel(out.sizes)
    out.observe(pixels, torch.zeros(len(pixels.image)))
    places, weight = drawn_often(out, times=20)
    assert weight is not None
    assert weight.tolist() == pytest.approx([1.0] * len(weight))
    chance = stated_chance(sampler("uniform"), 1.0)
    share = torch.bincount(places, minlength=len(chance)) / len(places)
    assert torch.all((share - chance).abs() < 4.5 * (chance / len(places)).sqrt())


@pytest.mark.parametrize("policy", ["uniform", "error", "edges", "error+edges"])
def test_single_pixel_image_is_sampled(policy: str) -> None:
    out = sampler(policy, sizes=((1, 1),))
    drawn = out.draw(5, seed=0, step=1)
    out.observe(drawn.pixels, torch.ones(5))
    assert all(part.tolist() == [0] * 5 for part in drawn.pixels)
    assert out.heat(0).tolist() == [[1.0]]
    assert len(out.draw(0, seed=0, step=0).pixels.image) == 0


def advance(out: PixelSampler, start: int, stop: int) -> list[tuple[torch.Tensor, ...]]:
    """Draw pixels and observe a fake error in every step; returns the draws."""
    seen: list[tuple[torch.Tensor, ...]] = []
    for step in range(start, stop):
        pixels, weight = out.draw(40 + step, seed=5, step=step)
        assert weight is not None
        out.observe(pixels, difficulty(pixels) / (1 + step))
        seen.append((*pixels, weight))
    return seen


@pytest.mark.parametrize("policy", ["error", "edges", "error+edges"])
@pytest.mark.parametrize("middle", [16, 20, 31])
def test_resumed_sampler_equals_uninterrupted_sampler(policy: str, middle: int) -> None:
    whole, first, second = (sampler(policy, cells=20) for _ in range(3))
    expected = advance(whole, 0, 40)
    got = advance(first, 0, middle)
    saved = {name: value.clone() for name, value in first.tensors().items()}
    advance(second, 0, 3)  # its earlier state is overwritten
    for name, value in second.tensors().items():
        value.copy_(saved[name])
    got += advance(second, middle, 40)
    for a, b in zip(got, expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert all(torch.equal(value, second.tensors()[name]) for name, value in whole.tensors().items())
    assert list(saved) == ([] if policy == "edges" else ["error", "table"])


def test_draws_depend_on_seed_and_step_and_on_errors_only_after_a_refresh() -> None:
    def same(a: Pixels, b: Pixels) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    out = sampler(refresh=4)
    before = out.draw(100, seed=0, step=5).pixels
    assert same(before, out.draw(100, seed=0, step=5).pixels)
    assert not same(before, out.draw(100, seed=1, step=5).pixels)
    assert not same(before, out.draw(100, seed=0, step=6).pixels)
    pixels = every_pixel(out.sizes)
    out.observe(pixels, difficulty(pixels))
    assert same(before, out.draw(100, seed=0, step=5).pixels)
    out.draw(1, seed=0, step=8)
    assert not same(before, out.draw(100, seed=0, step=5).pixels)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    sizes = ((300, 400), (210, 333))
    before = torch.get_num_threads()
    tables = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            out = sampler("error+edges", sizes=sizes)
            for step in (0, 16):
                pixels = out.draw(70_000, seed=0, step=step).pixels
                out.observe(pixels, difficulty(pixels))
        finally:
            torch.set_num_threads(before)
        tables.append(out.tensors())
    assert all(torch.equal(tables[0][name], tables[1][name]) for name in ("error", "table"))


@pytest.mark.parametrize(("limit", "side", "count"), [(10**6, 1, 48), (48, 1, 48), (47, 2, 17), (16, 3, 9), (3, 7, 3)])
def test_cut_uses_the_smallest_cells_within_the_limit(limit: int, side: int, count: int) -> None:
    sizes = torch.tensor(SIZES)
    cells = cut(sizes.numpy(), limit)
    assert (cells.side, len(cells)) == (side, count)
    assert float(cells.share.sum()) == pytest.approx(1)
    pixels = every_pixel(sizes)
    cell = cells.of(*(part.numpy() for part in pixels))
    even = (1 / (3 * sizes.prod(1).double()))[pixels.image]
    assert np.bincount(cell, even) == pytest.approx(cells.share)
    # The lowest and highest random words give pixels at the corners of the requested cell.
    numbers = np.arange(count)
    for word in (0, 2**32 - 1):
        assert np.array_equal(cells.of(*cells.place(numbers, np.full(count, word), np.full(count, word))), numbers)
    for index, (height, width) in enumerate(SIZES):
        mine = cell[pixels.image.numpy() == index].reshape(height, width)
        assert np.array_equal(cells.spread(numbers, index), mine)


def test_fewer_cells_than_images_raises() -> None:
    with pytest.raises(ConfigError, match="`cells` must be at least the number of images, which is 3; got 2") as error:
        sampler(cells=2)
    assert "cannot span two images" in str(error.value)


def edges_of(rgba: np.ndarray, limit: int = 1 << 18) -> np.ndarray:
    images = Pictures([rgba])
    return edge_map(images, cut(images.sizes, limit)).numpy()


def test_edge_map_matches_hand_computed_images() -> None:
    ramp = np.full((3, 4, 4), 255, np.uint8)
    ramp[..., :3] = (np.arange(4) * 51)[None, :, None] + np.arange(3)[:, None, None] * 20
    assert edges_of(ramp) == pytest.approx([math.hypot(51, 20) / 255] * 12, rel=1e-5)

    step = np.full((1, 4, 4), 255, np.uint8)
    step[:, 2:, :3] = 0  # white, white, black, black: half of the square of 1 on either side of the edge
    assert edges_of(step) == pytest.approx([0, math.sqrt(0.5), math.sqrt(0.5), 0], rel=1e-5)

    cut_out = np.full((1, 4, 4), 255, np.uint8)
    cut_out[:, 2:] = 0  # a colour 0.5 off mid grey, and alpha, both vanish
    assert edges_of(cut_out)[1] == pytest.approx(math.sqrt((0.25 + 1) / 2), rel=1e-5)
    cut_out[:, 2:, :3] = np.random.default_rng(0).integers(0, 256, (1, 2, 3))  # invisible, since alpha is 0
    assert edges_of(cut_out)[1] == pytest.approx(math.sqrt((0.25 + 1) / 2), rel=1e-5)


@pytest.mark.parametrize("limit", [1 << 18, 90, 5, 1])
def test_edges_do_not_depend_on_how_an_image_is_cut_into_bands(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rgba = noise((31, 17)).images[0]
    whole = edges_of(rgba, limit)
    single = edges_of(rgba)
    monkeypatch.setattr("raymine.pixels.edges._BAND", 40)
    assert np.allclose(edges_of(rgba, limit), whole, rtol=1e-6)
    cells = cut(np.array([[31, 17]]), limit)
    inside = cells.of(*(part.numpy() for part in every_pixel(torch.tensor([[31, 17]]))))
    assert np.bincount(inside, single) / np.bincount(inside) == pytest.approx(whole, rel=1e-5)


def test_combined_heat_is_the_mean_of_error_and_edge_heat() -> None:
    both, error, edges = (taught(policy=policy, cells=20) for policy in ("error+edges", "error", "edges"))
    for i in range(len(SIZES)):
        assert torch.allclose(both.heat(i), (error.heat(i) + edges.heat(i)) / 2, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "edge"}, r"pixels policy must be one of uniform, error, edges, error\+edges; got 'edge'"),
        ({"coverage": 0.0}, r"pixels `coverage` must be in 0.001 .. 1, got 0.0"),
        ({"coverage": 1.5}, r"`coverage` must be in 0.001 .. 1, got 1.5"),
        ({"coverage": math.nan}, "`coverage`"),
        ({"decay": 1.0}, r"pixels `decay` must be in 0 .. 1 and below 1, got 1.0"),
        ({"cells": 0}, "pixels needs cells >= 1 and refresh >= 1, got 0 and 16"),
        ({"refresh": 0}, "pixels needs cells >= 1 and refresh >= 1, got 262144 and 0"),
    ],
)
def test_invalid_config_raises_with_the_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PixelConfig(**options)  # type: ignore[arg-type]


@requires_gpu
def test_errors_observed_on_gpu_give_the_same_state_as_on_cpu() -> None:
    here, there = sampler(), sampler()
    for step in range(20):
        pixels = here.draw(200, seed=0, step=step).pixels
        there.draw(200, seed=0, step=step)
        here.observe(pixels, difficulty(pixels))
        there.observe(pixels, difficulty(Pixels(*(part.cuda() for part in pixels))))
    assert torch.equal(here.tensors()["error"], there.tensors()["error"])
    assert torch.equal(here.draw(200, seed=0, step=32).pixels.x, there.draw(200, seed=0, step=32).pixels.x)


def test_image_limit_caps_the_share_of_one_image() -> None:
    """Two images of one cell each with errors 9 and 1: drawn 9 to 1, or with a limit of 1 as 5 to 1."""
    images = np.zeros((2, 2, 2, 4), np.uint8)
    for limit, expected in ((None, 0.9), (1.0, 5 / 6)):
        config = PixelConfig("error", cells=2, coverage=0.001, reweight=False, refresh=1, image_limit=limit)
        chosen = PixelSampler(config, Pictures(list(images)))
        both = Pixels(torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
        chosen.observe(both, torch.tensor([9.0, 1.0]))
        image = chosen.draw(20_000, seed=0, step=0).pixels.image
        assert float((image == 0).float().mean()) == pytest.approx(expected, abs=0.01)
    with pytest.raises(ConfigError, match="`image_limit` must be at least 1"):
        PixelConfig("error", image_limit=0.5)
