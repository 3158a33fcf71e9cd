"""The limit of device memory, and where images are placed within it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raymine.contracts import Scene
from raymine.engines.fused.buffers import Buffers, TrainBuffers
from raymine.errors import ConfigError, ResourceError
from raymine.experiment import memory
from raymine.experiment.memory import (
    CONTEXT,
    ImagePlace,
    available_bytes,
    estimate_bytes,
    factors_on_device,
    memory_errors,
    memory_limit,
    place_images,
    require_memory,
)
from raymine.pixels import PixelConfig
from raymine.recipes.ngp import ngp, ngp_large
from raymine.step import TrainConfig
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from raymine.step.schedule import ProgressiveConfig
from support.device import requires_gpu
from support.scenes import SCENE

CUDA = torch.device("cuda")
CONFIG = ngp(SCENE, "cuda")
PHOTOS = np.array([[3000, 4000]] * 300)
GIB = 1 << 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A GPU of 80 GiB, of which 70 are free. fractions: those that torch was limited to."""
    made = SimpleNamespace(fractions=[], free=70 * GIB)
    properties = SimpleNamespace(total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (made.free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 1 << 20)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, _: made.fractions.append(share))
    for module in ("raymine.engines.plain", "raymine.engines.fused.problem"):
        monkeypatch.setattr(f"{module}.triton_problem", lambda: "")
    yield made
    assert memory._limits == {}


def test_limit_holds_for_torch_and_for_the_estimate(gpu: SimpleNamespace) -> None:
    assert available_bytes(CUDA) == 70 * GIB
    with memory_limit(CUDA, 8 * GIB):
        assert gpu.fractions == [pytest.approx((8 * GIB - CONTEXT) / (80 * GIB))]
        assert available_bytes(CUDA) == 8 * GIB - CONTEXT - (1 << 20)
        gpu.free = 2 * GIB
        assert available_bytes(CUDA) == 2 * GIB, "others hold the rest of the GPU"
        gpu.free = GIB // 64
        with pytest.raises(ResourceError, match=r"of memory on cuda, and 16\.0 MiB is free"):
            require_memory(CONFIG, SCENE.bounds, CUDA)
        gpu.free = 70 * GIB
    assert gpu.fractions[-1] == 1.0
    assert available_bytes(CUDA) == 70 * GIB


def test_limit_is_lifted_after_an_error_which_names_it(gpu: SimpleNamespace) -> None:
    with (
        pytest.raises(ResourceError, match="Out of memory on cuda: tried to allocate") as caught,
        memory_limit(CUDA, 8 * GIB),
        memory_errors(CUDA),
    ):
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")
    assert "The limit is `gpu_memory`" in str(caught.value.hint)
    assert gpu.fractions[-1] == 1.0


@pytest.mark.parametrize(("device", "limit", "words"), [("cpu", 8 * GIB, "on the CPU"), ("cuda", 1 << 20, "at least")])
def test_useless_limits_are_refused(gpu: SimpleNamespace, device: str, limit: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words), memory_limit(torch.device(device), limit):
        pass
    assert gpu.fractions == []


def test_images_stay_on_the_device_where_they_fit(gpu: SimpleNamespace) -> None:
    placed = place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA)
    assert placed.memory is None
    assert placed.sentence == "Images: 13.4 GiB on the device."
    assert "70.0 GiB of device memory are free" in placed.reason


@pytest.mark.parametrize("masked", [False, True])
def test_images_that_do_not_fit_take_what_a_step_leaves(gpu: SimpleNamespace, masked: bool) -> None:
    with memory_limit(CUDA, 8 * GIB):
        placed = place_images(CONFIG, PHOTOS, masked, SCENE.bounds, CUDA)
    assert placed.memory is not None
    step = estimate_bytes(CONFIG, SCENE.bounds, "cuda")
    assert 4 * GIB < placed.memory < 8 * GIB - CONTEXT - step
    assert placed.sentence.startswith(f"Images: {'16.8' if masked else '13.4'} GiB, of which ")
    assert "at a time on the device" in placed.sentence
    assert "16 of 13,800 bands of rows are replaced every 16 steps" in placed.reason


def test_smaller_images_of_a_progressive_run_share_the_memory(gpu: SimpleNamespace) -> None:
    gpu.free = 8 * GIB
    alone = place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA).memory
    several = replace(CONFIG, progressive=ProgressiveConfig())
    shared = place_images(several, PHOTOS, False, SCENE.bounds, CUDA).memory
    further = 2 * (estimate_bytes(CONFIG, SCENE.bounds, "cuda") // 2)
    assert alone is not None
    assert shared == (alone - further) // 3, "the other two engines have gradients and buffers of their own"


def test_images_of_a_run_that_refines_poses_for_a_while_are_on_the_device_then(gpu: SimpleNamespace) -> None:
    refined = replace(CONFIG, poses=PoseConfig())
    placed = place_images(refined, PHOTOS, False, SCENE.bounds, CUDA)
    assert placed.sentence == "Images: 13.4 GiB on the device."
    whole = replace(CONFIG, poses=PoseConfig(until=1.0))
    assert place_images(whole, PHOTOS, False, SCENE.bounds, CUDA).sentence == ""
    assert factors_on_device(replace(refined, progressive=ProgressiveConfig()), "cuda") == [4, 2, 1]
    gpu.free = 22 * GIB
    banded = place_images(refined, PHOTOS, False, SCENE.bounds, CUDA)
    assert banded.memory is not None
    assert factors_on_device(replace(refined, image_memory=banded.memory), "cuda") == [1]
    assert place_images(whole, PHOTOS, False, SCENE.bounds, CUDA) == ImagePlace()
    exposed = replace(CONFIG, exposure=ExposureConfig())
    assert place_images(exposed, PHOTOS, False, SCENE.bounds, CUDA) == ImagePlace(), "the host draws, and has room"
    assert estimate_bytes(refined, SCENE.bounds, "cuda") > estimate_bytes(CONFIG, SCENE.bounds, "cuda")


@pytest.mark.parametrize(
    ("recipe", "limit"), [(ngp, 2), (ngp, 3), (ngp, 4), (ngp, 6), (ngp_large, 3), (ngp_large, 4), (ngp_large, 6)]
)
def test_evaluations_and_checkpoints_have_room_beside_the_images(
    gpu: SimpleNamespace, recipe: Callable[[Scene, str], TrainConfig], limit: int
) -> None:
    config = recipe(SCENE, "cuda")
    with memory_limit(CUDA, limit * GIB):
        placed = place_images(config, PHOTOS, False, SCENE.bounds, CUDA)
    assert placed.memory is not None
    numbers = config.field.grid.total_entries * config.field.grid.features  # type: ignore[attr-defined]
    # Values, two moments and an average, all four copied to be saved; half-precision tables of trainer and renderer.
    state, halves = 4 * 4 * numbers, 2 * 2 * numbers
    buffers = TrainBuffers(config.batch.max_rays, 3 * config.batch.samples // 2, torch.device("meta"))
    shown = Buffers(1 << 19, 1 << 23, torch.device("meta"))
    held = sum(part.nbytes for b in (buffers, shown) for part in vars(b).values() if isinstance(part, torch.Tensor))
    assert placed.memory + 2 * state + 4 * numbers + halves + held < limit * GIB - CONTEXT


def test_processes_on_one_device_plan_with_their_part_of_its_memory(gpu: SimpleNamespace) -> None:
    gpu.free = 32 * GIB
    assert place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA).memory is None
    shared = place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA, sharing=4)
    gpu.free = 8 * GIB
    assert shared.memory == place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA).memory
    assert shared.memory is not None


def test_processes_on_one_device_share_its_limit(gpu: SimpleNamespace) -> None:
    with memory_limit(CUDA, 8 * GIB, sharing=2):
        assert gpu.fractions == [pytest.approx((4 * GIB - CONTEXT) / (80 * GIB))]
        assert available_bytes(CUDA, sharing=2) == 4 * GIB - CONTEXT - (1 << 20)
    with (
        pytest.raises(ConfigError, match=r"at least 2\.0 GiB for 2 processes on one GPU, got 1\.5 GiB"),
        memory_limit(CUDA, 3 * GIB // 2, sharing=2),
    ):
        pass


def test_processes_on_one_device_need_their_part_of_its_memory(gpu: SimpleNamespace) -> None:
    gpu.free = GIB
    require_memory(CONFIG, SCENE.bounds, CUDA)
    with pytest.raises(ResourceError, match=r"and 256\.0 MiB is free"):
        require_memory(CONFIG, SCENE.bounds, CUDA, sharing=4)


@pytest.mark.parametrize(
    "told",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be reported later",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_memory_that_ran_out_outside_of_torch_is_told_too(told: str) -> None:
    with pytest.raises(ResourceError, match="Out of memory on cuda"), memory_errors(CUDA):
        raise RuntimeError(told)
    with pytest.raises(RuntimeError, match="illegal"), memory_errors(CUDA):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_resumed_run_keeps_what_was_decided(gpu: SimpleNamespace) -> None:
    gpu.free = 8 * GIB
    assert place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA, decided=True).memory is None
    part = replace(CONFIG, image_memory=2 * GIB)
    gpu.free = 70 * GIB
    assert place_images(part, PHOTOS, False, SCENE.bounds, CUDA, decided=True).memory == 2 * GIB


def test_too_little_memory_for_any_image_is_said_at_once(gpu: SimpleNamespace) -> None:
    gpu.free = GIB // 8
    with pytest.raises(ResourceError, match=r"The images need at least [0-9.]+ MiB on the device"):
        place_images(CONFIG, PHOTOS, False, SCENE.bounds, CUDA)
    gpu.free = 70 * GIB
    with pytest.raises(ResourceError, match="Give the run more memory"), memory_limit(CUDA, 2 * GIB):
        place_images(ngp_large(SCENE, "cuda"), PHOTOS, False, SCENE.bounds, CUDA)


def test_nothing_is_placed_where_the_host_draws_rays(gpu: SimpleNamespace) -> None:
    by_error = replace(CONFIG, pixels=PixelConfig(policy="error"))
    assert place_images(by_error, PHOTOS, False, SCENE.bounds, CUDA).sentence == ""
    assert place_images(CONFIG, PHOTOS, False, SCENE.bounds, torch.device("cpu")).sentence == ""


@requires_gpu
def test_torch_refuses_to_allocate_beyond_the_limit() -> None:
    limit = int(torch.cuda.memory_reserved()) + 2 * GIB
    with pytest.raises(ResourceError, match="Out of memory"), memory_limit(CUDA, limit), memory_errors(CUDA):
        torch.empty(4 * GIB, dtype=torch.uint8, device=CUDA)
