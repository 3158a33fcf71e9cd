"""A part of the images on the device: what rays are drawn, and that a jump gives what walking there gives."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from raymine.engines.fused import rotating_images, rotation
from raymine.engines.fused.rays import DeviceRays
from raymine.engines.fused.rotating_images import RotatingImages, image_bytes
from raymine.engines.fused.rotation import STEPS
from raymine.engines.fused.trainer import FusedTrainer
from raymine.pixels import PixelConfig, PixelSampler
from raymine.step import TrainData, TrainState, create_state
from support.fused import CONFIG, DEVICE, data_on
from support.scenes import MemoryImages

MEMORY = 6000


@pytest.fixture(autouse=True)
def small_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "BAND", 96)


def distinct(data: TrainData, masked: bool = False) -> TrainData:
    """The same cameras over images in which every pixel has a colour of its own."""
    height, width = data.images.sizes[0]
    number = np.arange(len(data.rig) * height * width, dtype=np.uint32) | np.uint32(255 << 24)
    images = number.view(np.uint8).reshape(-1, height, width, 4)
    return replace(data, images=_Masked(list(images)) if masked else MemoryImages(list(images)))


class _Masked(MemoryImages):
    def mask(self, index: int) -> np.ndarray | None:
        """The left half of each odd image is ignored."""
        if index % 2 == 0:
            return None
        mask = np.full(self.sizes[index], 255, np.uint8)
        mask[:, : mask.shape[1] // 2] = 0
        return mask


def state_for(data: TrainData, policy: str, memory: int | None = MEMORY) -> TrainState:
    pixels = PixelConfig(policy=policy, cells=200)  # type: ignore[arg-type]
    config = replace(CONFIG, pixels=pixels, background="scene", image_memory=memory)
    return create_state(config, data, seed=3, device=DEVICE)


def window_of(images: RotatingImages) -> set[int]:
    """The numbers of all pixels that rays can be drawn from (see `distinct`)."""
    found = set[int]()
    for first, height, width in images.places.tolist():
        found |= {int(value) & 0xFFFFFF for value in images.pixels[first : first + height * width].cpu()}
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("policy", ["uniform", "edges"])
def test_rays_go_through_pixels_of_the_window_and_have_their_colours(policy: str, masked: bool) -> None:
    data = distinct(data_on(DEVICE), masked)
    state = state_for(data, policy)
    state.rays = 150
    drawn = DeviceRays(state, data)
    assert isinstance(drawn.images, RotatingImages)
    height, width = data.images.sizes[0]
    for state.step in (0, STEPS, 40 * STEPS + 3):
        batch = drawn.batch(state, data)
        colour = (batch.wanted.colour * 255).round().long().cpu()
        number = colour[:, 0] + (colour[:, 1] << 8) + (colour[:, 2] << 16)
        assert set(number.tolist()) <= window_of(drawn.images)
        image, place = number // (height * width), number % (height * width)
        y, x = place // width, place % width
        expected = data.rig.rays_for_pixels(*(part.to(DEVICE) for part in (image, x, y)))
        assert torch.allclose(batch.rays.origins, expected.origins, atol=1e-6)
        assert torch.allclose(batch.rays.directions, expected.directions, atol=1e-5)
        ignored = (image % 2 == 1) & (x < width // 2) if masked else torch.zeros(len(x), dtype=torch.bool)
        assert torch.equal(batch.wanted.weight.cpu() == 0, ignored)
        assert len(set(image.tolist())) > 2, "several images have a part in the window"


def test_weights_make_up_for_draws_by_edges_within_the_window() -> None:
    data = data_on(DEVICE)
    state = state_for(data, "edges")
    images = RotatingImages(data, state.pixels, state.seed, MEMORY, DEVICE)
    images.prepare(7 * STEPS)
    cells, coverage = images.cells, state.config.pixels.coverage
    boxes = cells.boxes.reshape(-1, 5).long()
    area = boxes[:, 3] * boxes[:, 4]
    shape = images.places[boxes[:, 0], 1:].prod(1)
    even = area / (shape * images.count)
    assert float(even.sum()) == pytest.approx(1.0)
    by_score = cells.running.diff()
    assert bool((by_score[area == 0] == 0).all())
    assert float(cells.running[-1]) == 1.0
    assert float(by_score.max()) > 1.5 * float(even.max()), "scores differ"
    chance = coverage * even + (1 - coverage) * by_score
    used = area > 0
    assert torch.allclose(cells.weights[used].double(), (even / chance)[used], rtol=1e-4)


def test_images_without_edges_are_drawn_evenly() -> None:
    data = data_on(DEVICE)
    data = replace(data, images=MemoryImages([np.full((*data.images.sizes[0], 4), 255, np.uint8)] * len(data.rig)))
    state = state_for(data, "edges")
    images = RotatingImages(data, state.pixels, 0, MEMORY, DEVICE)
    images.prepare(0)
    assert torch.allclose(images.cells.weights[images.cells.running.diff() > 0], torch.ones(1, device=DEVICE), atol=0.1)


def test_jump_to_a_step_gives_what_walking_there_gives() -> None:
    data = distinct(data_on(DEVICE))
    state = state_for(data, "edges")
    walked, jumped = (RotatingImages(data, state.pixels, state.seed, MEMORY, DEVICE) for _ in range(2))
    for step in range(0, 61 * STEPS, STEPS):
        walked.prepare(step)
    jumped.prepare(60 * STEPS + 5)
    for name in ("places", "rig"):
        assert torch.equal(getattr(walked, name), getattr(jumped, name)), name
    assert torch.equal(walked.cells.running, jumped.cells.running)
    assert torch.equal(walked.cells.weights, jumped.cells.weights)
    assert window_of(walked) == window_of(jumped)
    walked.prepare(3 * STEPS)  # a rollback
    jumped.prepare(3 * STEPS)
    assert torch.equal(walked.places, jumped.places)
    assert window_of(walked) == window_of(jumped)


def test_late_bands_are_waited_for_and_the_wait_is_counted() -> None:
    data = distinct(data_on(DEVICE))
    gate = threading.Event()
    gate.set()

    class Slow(MemoryImages):
        def image(self, index: int) -> np.ndarray:
            assert gate.wait(60)
            return super().image(index)

    data = replace(data, images=Slow(list(data.images._images.numpy())))
    images = RotatingImages(data, PixelSampler(PixelConfig(), data.images), 0, MEMORY, DEVICE)
    images.prepare(0)
    for turn in range(1, 5):
        images.prepare(turn * STEPS)
    before = images.waited
    gate.clear()
    timer = threading.Timer(0.5, gate.set)
    timer.start()
    for turn in range(5, 12):
        images.prepare(turn * STEPS)
    timer.join()
    assert 0.05 < images.waited - before < 30


def test_failure_to_read_ends_training_with_its_error() -> None:
    data = distinct(data_on(DEVICE))

    class Broken(MemoryImages):
        reads = 0

        def image(self, index: int) -> np.ndarray:
            Broken.reads += 1
            if Broken.reads > 60:
                raise OSError("the disk is gone")
            return super().image(index)

    data = replace(data, images=Broken(list(data.images._images.numpy())))
    images = RotatingImages(data, PixelSampler(PixelConfig(), data.images), 0, MEMORY, DEVICE)

    def walk() -> None:
        for turn in range(200):
            images.prepare(turn * STEPS)

    with pytest.raises(OSError, match="the disk is gone"):
        walk()


def test_images_that_fit_stay_on_the_device() -> None:
    data = data_on(DEVICE)
    state = state_for(data, "uniform", image_bytes(data))
    assert not isinstance(DeviceRays(state, data).images, RotatingImages)


def test_graph_trainer_moves_the_window_and_a_resumed_one_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the draws of steps are run: the other stages do not know where images are."""
    data = distinct(data_on(DEVICE))
    monkeypatch.setattr(FusedTrainer, "_replay", lambda trainer, name, work: trainer.draw() if name == "step" else None)
    drawn, windows = [], []
    for start in (0, STEPS - 1):
        state = state_for(data, "edges")
        state.rays, state.step = 64, start
        trainer = FusedTrainer(state, data)
        trainer.reload()
        windows.append(window_of(trainer.rays.images))
        trainer.advance(STEPS + 1 - start)
        trainer.step.fill_(state.step)
        trainer.draw()
        drawn.append(trainer.buffers.wanted[:64].clone())
        windows.append(window_of(trainer.rays.images))
    assert windows[1] == windows[3] != windows[0]
    assert torch.equal(*drawn)


def test_principal_point_is_where_the_kernel_looks_for_it() -> None:
    data = data_on(DEVICE)
    assert torch.equal(
        data.rig.table[rotating_images._CY].cpu(), torch.tensor([camera.cy for camera in data.rig.cameras])
    )
