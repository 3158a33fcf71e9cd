"""Where stages run at the same time."""

from __future__ import annotations

import pytest

from raymine.pipeline.devices import places, visible_gpus


def test_one_place_for_each_gpu_and_one_on_a_cpu() -> None:
    assert [place.environment for place in places(None, ["0", "3"])] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "3"},
    ]
    assert [place.name for place in places(3, ["0", "1"])] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [place.environment for place in places(None, [])] == [{}]
    assert all(int(place.environment["OMP_NUM_THREADS"]) >= 1 for place in places(4, []))


def test_gpus_are_those_that_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 2")
    assert visible_gpus() == ["1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
