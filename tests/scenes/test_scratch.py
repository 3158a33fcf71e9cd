"""Large arrays in files without a name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.errors import ResourceError
from raymine.scenes import scratch
from raymine.scenes.bank.reduced import ReducedImages
from support.scenes import MemoryImages


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path))
    monkeypatch.setattr(scratch, "IN_MEMORY", 64)
    return tmp_path


def test_small_arrays_stay_in_memory(cache: Path) -> None:
    assert not isinstance(scratch.zeros((16,), np.float32, "numbers"), np.memmap)


def test_large_arrays_lie_in_a_file_that_has_no_name(cache: Path) -> None:
    found = scratch.zeros((5, 7), np.float32, "numbers")
    assert isinstance(found, np.memmap)
    assert found.shape == (5, 7)
    assert not found.any()
    found[4, 6] = 3
    assert torch.from_numpy(found)[4, 6] == 3
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_told_before_anything_is_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(ResourceError, match="Cannot write 4 MB of the depth maps: no space left") as caught:
        scratch.zeros((1 << 20,), np.float32, "the depth maps")
    assert "RAYMINE_CACHE" in caught.value.hint
    assert list(cache.iterdir()) == []


def test_small_images_are_the_same_in_a_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0)
    source = MemoryImages([drawn.integers(0, 255, (20, 12, 4), dtype=np.uint8) for _ in range(3)])
    in_a_file = ReducedImages(source, 2)
    monkeypatch.setattr(scratch, "IN_MEMORY", 1 << 20)
    in_memory = ReducedImages(source, 2)
    for index in range(3):
        assert np.array_equal(in_a_file.image(index), in_memory.image(index))
    assert isinstance(in_a_file._pixels, np.memmap)
    assert not isinstance(in_memory._pixels, np.memmap)
