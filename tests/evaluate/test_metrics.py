"""PSNR and SSIM against closed forms and a brute-force reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raymine.evaluate import psnr, ssim
from raymine.kernels.threads import mean
from support.device import requires_gpu


def brute_force_ssim(a: np.ndarray, b: np.ndarray, mask: np.ndarray | None = None) -> float:
    """SSIM straight from its definition, one window at a time."""
    axis = np.arange(-5, 6)
    window = np.exp(-(axis[:, None] ** 2 + axis[None, :] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    values = []
    for c in range(a.shape[2]):
        for i in range(a.shape[0] - 10):
            for j in range(a.shape[1] - 10):
                if mask is not None and not mask[i : i + 11, j : j + 11].all():
                    continue
                x, y = a[i : i + 11, j : j + 11, c], b[i : i + 11, j : j + 11, c]
                mx, my = (window * x).sum(), (window * y).sum()
                vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
                cov = (window * (x - mx) * (y - my)).sum()
                values.append((2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    return float(np.mean(values))


def random_pair(height: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.random((height, width, 3))
    return a, np.clip(a + 0.2 * rng.standard_normal(a.shape), 0, 1)


def test_psnr_matches_closed_forms() -> None:
    a = torch.full((4, 5, 3), 0.5)
    assert psnr(a, a + 0.1) == pytest.approx(20.0, abs=1e-5)
    assert psnr(torch.zeros(4, 5, 3), torch.ones(4, 5, 3)) == 0.0
    # One of 60 values is off by one: mse = 1/60.
    b = torch.zeros(4, 5, 3)
    b[1, 2, 0] = 1.0
    assert psnr(torch.zeros(4, 5, 3), b) == pytest.approx(10 * math.log10(60))
    assert psnr(a, a) == math.inf


def test_psnr_counts_only_unmasked_pixels() -> None:
    a, b = torch.zeros(2, 2, 3), torch.zeros(2, 2, 3)
    b[0, 0], b[1, 1] = 1.0, 0.1
    mask = torch.tensor([[False, True], [True, True]])
    assert psnr(a, b, mask) == pytest.approx(-10 * math.log10(0.01 / 3), abs=1e-6)
    assert math.isnan(psnr(a, b, torch.zeros(2, 2, dtype=torch.bool)))


def test_ssim_of_an_image_with_itself_is_one() -> None:
    a, _ = random_pair(20, 17)
    assert ssim(torch.from_numpy(a), torch.from_numpy(a)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("p", "q"), [(0.0, 1.0), (0.3, 0.6), (0.5, 0.5)])
def test_ssim_of_constant_images_is_the_luminance_term(p: float, q: float) -> None:
    expected = (2 * p * q + 1e-4) / (p * p + q * q + 1e-4)
    a, b = torch.full((16, 16, 3), p, dtype=torch.float64), torch.full((16, 16, 3), q, dtype=torch.float64)
    assert ssim(a, b) == pytest.approx(expected, rel=1e-9)


def test_ssim_matches_brute_force() -> None:
    a, b = random_pair(19, 23)
    assert ssim(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(brute_force_ssim(a, b), abs=1e-10)


def direct_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """As `brute_force_ssim`, for larger images: the weighted sums over all windows at once, in two dimensions."""
    axis = np.arange(-5, 6)
    window = np.exp(-(axis[:, None] ** 2 + axis[None, :] ** 2) / (2 * 1.5**2))
    window /= window.sum()

    def over(image: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(image, (11, 11), axis=(0, 1))
        return np.einsum("hwcij,ij->hwc", windows, window)

    mx, my = over(a), over(b)
    vx, vy, cov = over(a * a) - mx * mx, over(b * b) - my * my, over(a * b) - mx * my
    return float(np.mean((2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))))


@pytest.mark.parametrize("size", [(140, 270), (128, 256), (129, 257), (11, 300), (300, 11)])
def test_ssim_of_several_tiles_is_that_of_the_whole_image(size: tuple[int, int]) -> None:
    """A tile on a CPU is 128x256 pixels of one channel."""
    a, b = random_pair(*size, seed=sum(size))
    assert ssim(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(direct_ssim(a, b), abs=1e-10)


@requires_gpu
def test_ssim_on_cuda_equals_that_on_the_cpu() -> None:
    a, b = (torch.from_numpy(image).float() for image in random_pair(2100, 190))
    mask = torch.rand(2100, 190) > 1e-3
    assert ssim(a.cuda(), b.cuda()) == pytest.approx(ssim(a, b), abs=1e-10)
    assert ssim(a.cuda(), b.cuda(), mask.cuda()) == pytest.approx(ssim(a, b, mask), abs=1e-10)


@pytest.mark.parametrize("size", [(3, 5), (70, 200), (2, 12000)])
def test_psnr_in_pieces_has_the_bits_of_the_whole_image(size: tuple[int, int]) -> None:
    """The largest images have more than 2^15 values, which are a piece."""
    a, b = (torch.from_numpy(image).float() for image in random_pair(*size))
    squared = (a.double() - b.double()).square()
    assert psnr(a, b) == -10.0 * math.log10(float(mean(squared)))


def test_ssim_float32_keeps_precision_on_bright_flat_images() -> None:
    rng = np.random.default_rng(1)
    a = (0.98 + 0.01 * rng.random((24, 24, 3))).astype(np.float32)
    b = (0.98 + 0.01 * rng.random((24, 24, 3))).astype(np.float32)
    expected = brute_force_ssim(a.astype(np.float64), b.astype(np.float64))
    assert ssim(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, abs=1e-9)


def test_masked_ssim_skips_windows_with_masked_pixels() -> None:
    a, b = random_pair(18, 21)
    mask = np.ones((18, 21), dtype=bool)
    mask[3, 4] = False
    masked = ssim(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(mask))
    assert masked == pytest.approx(brute_force_ssim(a, b, mask), abs=1e-10)
    mask[:] = False
    assert math.isnan(ssim(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(mask)))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (4, 30), (10, 10)])
def test_ssim_of_small_images_uses_a_smaller_window(size: tuple[int, int]) -> None:
    a, b = random_pair(*size)
    assert ssim(torch.from_numpy(a), torch.from_numpy(a)) == pytest.approx(1.0, abs=1e-12)
    assert -1.0 <= ssim(torch.from_numpy(a), torch.from_numpy(b)) < 1.0


def test_metrics_reject_different_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2, 3\) and \(2, 3, 3\)"):
        psnr(torch.zeros(2, 2, 3), torch.zeros(2, 3, 3))
    with pytest.raises(ValueError, match="mask"):
        ssim(torch.zeros(2, 2, 3), torch.zeros(2, 2, 3), torch.ones(3, 2))
