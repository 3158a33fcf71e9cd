"""Where stages run at the same time."""

from __future__ import annotations

import pytest

from raymine.errors import RunError
from raymine.pipeline import devices
from raymine.pipeline.devices import GIB, best_place, places, visible_gpus


def test_one_place_for_each_gpu_and_one_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert [place.environment for place in places(None, ["0", "3"])] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "3"},
    ]
    assert [place.name for place in places(3, ["0", "1"])] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [place.environment for place in places(None, [])] == [{}]
    assert all(int(place.environment["OMP_NUM_THREADS"]) >= 1 for place in places(4, []))


def test_gpus_are_numbered_as_the_driver_numbers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert places(None, ["1"])[0].environment == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_gpus_are_those_that_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 2")
    assert visible_gpus() == ["1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


def test_a_gpu_takes_as_many_processes_as_its_free_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    free: dict[str, float | None] = {"0": 5 * GIB, "1": 17 * GIB, "2": 1 * GIB}
    monkeypatch.setattr(devices, "free_gpu_memory", free.get)
    found = places(None, ["0", "1", "2"], 5 * GIB)
    assert [place.gpu for place in found] == ["0", "1", "1", "1"]
    assert len(places(2, ["0", "1", "2"], 5 * GIB)) == 2
    with pytest.raises(RunError, match=r"No GPU has 40 GiB of free memory; the most is 17\.0 GiB"):
        places(None, ["0", "1", "2"], 40 * GIB)

    first = best_place(found, [])
    assert first is found[1], "the GPU with the most free memory"
    rest = [place for place in found if place is not first]
    assert best_place(rest, [first]) is found[0], "then the one without a process of ours"
    free.update({"0": 1 * GIB, "1": 2 * GIB})
    assert best_place(rest, [first]) is None, "others have taken the memory"
