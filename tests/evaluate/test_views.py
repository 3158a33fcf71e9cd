"""Evaluation of views with renderers whose error is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raymine.evaluate import Evaluation, ViewScore, evaluate_views, psnr
from raymine.evaluate.lpips import Lpips
from raymine.evaluate.lpips.network import shapes_of
from raymine.evaluate.protocol import Protocol, digest, quantised
from raymine.evaluate.views import true_image
from support.bank_scenes import noise, opened, save, scene_of
from support.known_views import FakeRig, ListOfImages, ShiftedTruth, random_images


def two_images() -> ListOfImages:
    return random_images((14, 12), (12, 16))


def test_evaluate_views_scores_a_known_error_and_writes_all_files(tmp_path: Path) -> None:
    source = two_images()
    calls: list[tuple[int, int]] = []
    evaluation = evaluate_views(
        ShiftedTruth(source, 0.1),
        FakeRig(source),  # type: ignore[arg-type]
        source,
        background=(1.0, 1.0, 1.0),
        names=["test/r_0", "r_1"],
        out_dir=tmp_path,
        progress=lambda done, total: calls.append((done, total)),
    )
    # Pixels stay below 0.9 except through the white background, where the shifted colour is clamped to 1.
    assert [view.name for view in evaluation.views] == ["test_r_0", "r_1"]
    assert calls == [(1, 2), (2, 2)]
    truth, mask = true_image(source, 0, torch.ones(3))
    assert mask is None
    expected = psnr(quantised(truth + 0.1), quantised(truth))
    assert abs(expected - psnr((truth + 0.1).clamp(0, 1), truth)) > 1e-3
    assert evaluation.views[0].psnr == pytest.approx(expected, abs=1e-4)
    assert evaluation.psnr == pytest.approx((evaluation.views[0].psnr + evaluation.views[1].psnr) / 2)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored == evaluation.to_json()
    assert stored["count"] == 2
    kinds = {"pred", "true", "error", "depth", "opacity", "sheet"}
    assert {p.name for p in (tmp_path / "images").iterdir()} == {
        f"{n}-{k}.png" for n in ("test_r_0", "r_1") for k in kinds
    }
    with Image.open(tmp_path / "images" / "r_1-pred.png") as picture:
        assert picture.size == (16, 12)
        shown = np.asarray(picture)
    with Image.open(tmp_path / "images" / "r_1-true.png") as picture:
        pair = [torch.from_numpy(image / 255) for image in (shown, np.asarray(picture))]
    assert psnr(*pair) == pytest.approx(evaluation.views[1].psnr, abs=1e-4), "the pictures are not what was scored"
    # The sheet has four columns with a gap of 8 pixels around each, and labels above: predicted, true, error, depth.
    with Image.open(tmp_path / "images" / "r_1-sheet.png") as picture:
        sheet = np.asarray(picture)
    assert sheet.shape == (12 + 18 + 8, 4 * 16 + 5 * 8, 3)
    for column, kind in enumerate(("pred", "true", "error", "depth")):
        left = 8 + column * 24
        with Image.open(tmp_path / "images" / f"r_1-{kind}.png") as picture:
            assert np.array_equal(sheet[18:30, left : left + 16], np.asarray(picture)), kind
        assert (sheet[:18, left : left + 16] < 255).any(), f"the label of {kind} is missing"


def test_true_image_composites_straight_alpha_over_the_background() -> None:
    pixel = np.array([[[255, 0, 51, 51]]], dtype=np.uint8)  # red, alpha 0.2
    source = ListOfImages([pixel], [np.ones((1, 1), np.uint8)])
    over_white, _ = true_image(source, 0, torch.ones(3))
    over_black, _ = true_image(source, 0, torch.zeros(3))
    assert over_white[0, 0].tolist() == pytest.approx([1.0, 0.8, 0.84])
    assert over_black[0, 0].tolist() == pytest.approx([0.2, 0.0, 0.04])


def test_true_image_has_the_bits_and_the_mask_of_gathered_pixels(tmp_path: Path) -> None:
    mask = np.where(noise(7, 9, 11)[..., 0] > 100, np.uint8(255), np.uint8(0))
    files = [(save(tmp_path / f"{channels}.png", noise(channels, 9, 11, channels)), 11, 9) for channels in (3, 4)]
    background = torch.tensor([0.3, 0.7, 1.0])
    with opened(scene_of(tmp_path, files, {1: save(tmp_path / "mask.png", mask)}), tmp_path) as bank:
        y, x = (axis.reshape(-1) for axis in torch.meshgrid(torch.arange(9), torch.arange(11), indexing="ij"))
        for index in range(2):
            rgba, weight = bank.gather(torch.full_like(x, index), y, x)
            colour, kept = true_image(bank, index, background)
            expected = rgba[:, :3] * rgba[:, 3:] + background * (1.0 - rgba[:, 3:])
            assert torch.equal(colour.reshape(-1, 3), expected)
            assert (kept is None) == (index == 0)
            if kept is not None:
                assert torch.equal(kept.reshape(-1), weight > 0)


def test_masked_pixels_do_not_affect_psnr() -> None:
    source, painted = two_images(), two_images()
    painted.images[0][:5] = 255
    source.masks[0][:5] = 0
    renderer = ShiftedTruth(painted, 0.0)  # wrong at masked pixels only
    masked = evaluate_views(renderer, FakeRig(source), source, background=(0, 0, 0), indices=[0])  # type: ignore[arg-type]
    source.masks[0][:] = 1
    counted = evaluate_views(renderer, FakeRig(source), source, background=(0, 0, 0), indices=[0])  # type: ignore[arg-type]
    assert masked.views[0].psnr > 100.0
    assert counted.views[0].psnr < 20.0


def test_lpips_and_protocol_are_in_the_result_and_its_file(tmp_path: Path) -> None:
    source = random_images((33, 40), (36, 32))
    source.masks[1][:] = 0
    network = Lpips("alex", {name: torch.ones(shape) / math.prod(shape) for name, shape in shapes_of("alex").items()})
    rig = FakeRig(source)
    protocol = Protocol(views=2, available=2)
    evaluation = evaluate_views(
        ShiftedTruth(source, 0.1),
        rig,  # type: ignore[arg-type]
        source,
        background=(0, 0, 0),
        out_dir=tmp_path,
        pictures="none",
        lpips=[network],
        protocol=protocol,
    )
    truth = quantised(true_image(source, 0, torch.zeros(3))[0])
    expected = network(quantised(true_image(source, 0, torch.zeros(3))[0] + 0.1), truth)
    assert evaluation.views[0].lpips["alex"] == pytest.approx(expected, rel=1e-3)
    assert evaluation.views[1].lpips["alex"] == 0.0, "masked pixels must not count"
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["lpips_alex"] == pytest.approx(expected / 2, rel=1e-3)
    assert stored["images"][1]["lpips_alex"] == 0.0
    assert stored["protocol"]["digest"] == digest(protocol)


def test_non_finite_prediction_gives_low_finite_psnr() -> None:
    source = two_images()
    evaluation = evaluate_views(ShiftedTruth(source, math.nan), FakeRig(source), source, background=(0, 0, 0))  # type: ignore[arg-type]
    assert all(math.isfinite(view.psnr) and view.psnr < 20 for view in evaluation.views)


def test_evaluation_json_writes_non_finite_scores_as_null() -> None:
    evaluation = Evaluation((ViewScore("a", math.inf, 1.0, 0.1), ViewScore("b", math.nan, math.nan, 0.1)), 1.0)
    document = json.dumps(evaluation.to_json(), allow_nan=False)
    assert '"psnr": null' in document
    assert evaluation.ssim == 1.0
    assert math.isnan(Evaluation((), 0.0).psnr)
