"""Samples of the machine: what they hold, what they cost, and that nothing can break them."""

from __future__ import annotations

import sys
import time
import types

import pytest

from raymine import monitor
from raymine.monitor import Monitor, Sample


def first_sample(watch: Monitor, seconds: float = 10.0) -> Sample:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sample = watch.take()
        if sample is not None:
            return sample
        time.sleep(0.01)
    raise AssertionError("no sample")


def test_samples_have_cpu_and_memory_and_are_taken_once() -> None:
    watch = Monitor(period=0.02)
    sample = first_sample(watch)
    watch.close()
    assert sample.memory is not None
    assert sample.memory > 1 << 20
    assert sample.free is not None
    assert sample.cpu is not None
    assert sample.gpu is None
    time.sleep(0.1)
    watch.take()
    assert watch.take() is None


def test_gpu_is_read_through_nvml_and_its_errors_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("pynvml")
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    module.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(used=30, total=100)  # type: ignore[attr-defined]
    module.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=75)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    reader = monitor._Reader(1)
    assert reader._handle == 5, "NVML counts all devices"
    sample = reader.sample()
    assert (sample.gpu, sample.gpu_memory, sample.gpu_total) == (0.75, 30, 100)

    def fail(_: object) -> None:
        raise RuntimeError("GPU is lost")

    module.nvmlDeviceGetMemoryInfo = fail  # type: ignore[attr-defined]
    sample = reader.sample()
    assert sample.gpu is None
    assert sample.memory is not None
    module.nvmlInit = lambda: fail(None)  # type: ignore[attr-defined]
    assert monitor._open_gpu(0) == (None, None)


def test_a_sample_costs_a_small_share_of_its_period() -> None:
    reader = monitor._Reader(None)
    started = time.process_time()
    for _ in range(20):
        reader.sample()
    assert (time.process_time() - started) / 20 < 0.01 * monitor.PERIOD
