"""Shared fixtures: poisoned memory, a temporary cache folder, and skipping of GPU tests without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from raymine.contracts import Scene
from raymine.scenes.bank import pack as bank_pack
from support.bank_scenes import noise_scene

# Tests run in parallel processes, one per core, so each process uses a single thread.
torch.set_num_threads(1)
numba.set_num_threads(1)

# Without a GPU, Triton kernels run in Triton's interpreter. Triton reads this variable when it is first imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` if torch sees no CUDA device. No other place decides this."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch sees none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def _numba_ready() -> None:
    """Let Numba register NumPy's functions, which it does at its first compilation, before any of them is replaced."""
    numba.njit(lambda: np.empty(1).sum() + np.full(1, 0).sum() + np.empty_like(np.zeros(1)).sum())()


@pytest.fixture
def poisoned(_numba_ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialised NumPy and torch memory with NaN (or a large integer, or True), so that elements that are never
    written show up."""

    def filled(real):  # type: ignore[no-untyped-def]
        def empty(*args, **options):  # type: ignore[no-untyped-def]
            out = real(*args, **options)
            if isinstance(out, np.ndarray):
                kind = out.dtype.kind
                out[...] = np.nan if kind == "f" else True if kind == "b" else np.iinfo(out.dtype).max // 2
                return out
            real_number = out.is_floating_point()
            return out.fill_(torch.nan if real_number else out.dtype == torch.bool or torch.iinfo(out.dtype).max // 2)

        return empty

    for home, name in (
        (np, "empty"),
        (np, "empty_like"),
        (torch, "empty"),
        (torch, "empty_like"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(home, name, filled(getattr(home, name)))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary cache, so that no test touches the user's cache."""
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Scene:
    """A scene of six small images for the image bank."""
    return noise_scene(tmp_path / "photos")


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the sources decoded so far."""
    seen: list[str] = []
    original = bank_pack.decode

    def counting(source):  # type: ignore[no-untyped-def]
        seen.append(source.name)
        return original(source)

    monkeypatch.setattr(bank_pack, "decode", counting)
    return seen
