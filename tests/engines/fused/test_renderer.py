"""The buffers of the fused renderer: smaller where device memory is short."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from raymine.engines.fused import renderer


@pytest.mark.parametrize(
    ("share", "free", "samples"),
    [(1.0, 100 << 30, 1 << 24), (0.1, 100 << 30, 1 << 23), (1.0, 4 << 30, 1 << 23), (None, 100 << 30, 1 << 24)],
)
def test_buffers_are_smaller_within_a_limit_or_on_a_small_device(
    share: float | None, free: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = SimpleNamespace(type="cuda", index=0)
    monkeypatch.setattr(renderer, "Buffers", lambda rays, samples, device: (rays, samples))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 141 << 30))
    if share is None:
        monkeypatch.delattr(torch.cuda, "get_per_process_memory_fraction", raising=False)
    else:
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: share, raising=False)
    assert renderer._buffers_on(device) == (1 << 19, samples)
