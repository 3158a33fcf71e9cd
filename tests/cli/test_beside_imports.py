"""What commands begin before they import torch."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raymine import files
from raymine.cli import beside_imports
from raymine.cli.beside_imports import open_cuda, read_checkpoint


class Driver:
    """A CUDA driver that notes what it is asked, and has `devices` devices."""

    def __init__(self, devices: int) -> None:
        self.devices, self.called = devices, list[str]()

    def cuInit(self, flags: int) -> int:
        self.called.append("init")
        return 0 if self.devices else 100

    def cuDeviceGet(self, device: Any, number: int) -> int:
        self.called.append(f"device {number}")
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.called.append("context")
        return 0


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(beside_imports, "_computes_on_cuda", lambda: True)
    monkeypatch.setattr(threading, "Thread", lambda target, daemon: SimpleNamespace(start=target))


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("device", "devices", "called"),
    [("auto", 1, ["init", "device 0", "context"]), ("cuda", 0, ["init"]), ("cpu", 1, []), ("cuda:1", 2, [])],
)
def test_the_first_device_is_opened_where_a_command_may_use_it(
    device: str, devices: int, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(devices)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    open_cuda(device)
    assert driver.called == called


@pytest.mark.usefixtures("without_torch")
def test_a_machine_without_a_driver_is_none_of_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    open_cuda("auto")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    open_cuda("auto")


def test_nothing_is_opened_once_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", threading)
    monkeypatch.setattr(beside_imports, "_computes_on_cuda", lambda: pytest.fail("torch opens the device itself"))
    open_cuda("auto")


@pytest.mark.parametrize(
    ("library", "triton", "expected"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_a_build_of_torch_for_the_cpu_or_without_triton_leaves_the_device_closed(
    library: bool, triton: bool, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    if library:
        (tmp_path / "lib" / "libtorch_cuda.so").touch()
    specs = {"torch": SimpleNamespace(origin=str(tmp_path / "__init__.py")), "triton": triton or None}
    monkeypatch.setattr(importlib.util, "find_spec", specs.get)
    assert beside_imports._computes_on_cuda() is expected


def test_the_latest_checkpoint_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BEGUN", {})
    read_checkpoint(tmp_path)
    assert not files._BEGUN
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in (7, 30):
        for suffix in ("json", "safetensors"):
            (folder / f"step-{step:08d}.{suffix}").write_text("content")
    read_checkpoint(tmp_path)
    assert [Path(identity[0]).name for identity in files._BEGUN if identity] == ["step-00000030.safetensors"]
