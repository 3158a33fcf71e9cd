"""Checkpoints are saved at once on a CPU and beside training on CUDA, one at a time, and their errors are not lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine import checkpoint
from raymine.errors import ResourceError
from raymine.experiment.saved import saver as saver_module
from raymine.experiment.saved.saver import Saver
from support.device import requires_gpu

CPU = torch.device("cpu")


def test_save_on_a_cpu_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    done: list[int] = []
    Saver(tmp_path, 2, CPU).save(3, {"a": torch.ones(4)}, {}, {}, lambda: done.append(3))
    assert done == [3]
    assert torch.equal(checkpoint.load(checkpoint.path_of(tmp_path, 3)).tensors["a"], torch.ones(4))


class Beside(Saver):
    """A saver that writes in a thread, as on CUDA, without a device."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Event:
            def record(self, *_: object) -> None: ...

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
        super().__init__(folder, 2, torch.device("cuda"))

    def _write(
        self, step: int, copies: Mapping[str, Tensor], scalars: Mapping[str, Any], meta: Mapping[str, Any], ready: Any
    ) -> None:
        saver_module.checkpoint.save(self._folder, step, copies, scalars, meta, keep=self._keep)


def test_save_beside_training_keeps_the_values_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, release, done = Beside(tmp_path, monkeypatch), threading.Event(), []
    real = checkpoint.save

    def slow(*args: Any, **options: Any) -> Path:
        assert release.wait(30)
        return real(*args, **options)

    monkeypatch.setattr(saver_module.checkpoint, "save", slow)
    weights = torch.ones(4)
    saver.save(1, {"a": weights}, {}, {}, lambda: done.append(1))
    saver.poll()
    assert done == [], "the save has not ended"
    weights.zero_()  # training goes on
    release.set()
    saver.settle()
    assert done == [1]
    assert torch.equal(checkpoint.load(checkpoint.path_of(tmp_path, 1)).tensors["a"], torch.ones(4))
    saver.close()


def test_second_save_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, done = Beside(tmp_path, monkeypatch), []
    for step in (1, 2, 3):
        saver.save(step, {"a": torch.full((2,), float(step))}, {}, {}, lambda step=step: done.append(step))
        assert done == list(range(1, step))
    saver.settle()
    saver.settle()
    assert done == [1, 2, 3]
    assert checkpoint.list_steps(tmp_path) == [2, 3]
    saver.close()


def test_error_of_a_save_is_raised_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, done = Beside(tmp_path, monkeypatch), []

    def full(*_: Any, **__: Any) -> Path:
        raise ResourceError("the disk is full")

    monkeypatch.setattr(saver_module.checkpoint, "save", full)
    saver.save(1, {"a": torch.ones(2)}, {}, {}, lambda: done.append(1))
    with pytest.raises(ResourceError, match="the disk is full"):
        saver.settle()
    assert done == []
    saver.close()


@requires_gpu
def test_save_on_cuda_is_not_changed_by_later_steps(tmp_path: Path) -> None:
    saver = Saver(tmp_path, 2, torch.device("cuda"))
    weights = torch.arange(10_000_000, device="cuda", dtype=torch.float32)
    saver.save(1, {"a": weights, "b": weights[:0]}, {}, {}, lambda: None)
    weights.zero_()
    saver.settle()
    saver.close()
    stored = checkpoint.load(checkpoint.path_of(tmp_path, 1)).tensors
    assert torch.equal(stored["a"], torch.arange(10_000_000, dtype=torch.float32))
    assert stored["b"].shape == (0,)
