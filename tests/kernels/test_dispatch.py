"""The choice of a backend: by device, forced, explained, and without Numba."""

from __future__ import annotations

import pytest
import torch

from raymine.errors import ConfigError
from raymine.kernels import dispatch


def test_backend_is_chosen_by_device_and_can_be_forced() -> None:
    choices = {c.op: c for c in dispatch.explain("cpu")}
    assert choices["hash_grid"].backend == "cpu"
    usual = "reference" if dispatch.triton_problem() else "gpu"
    assert {c.op: c.backend for c in dispatch.explain("cuda")} == {
        op: usual if "gpu" in offered else "reference" for op, offered in dispatch.BACKENDS.items()
    }
    with dispatch.force("reference"):
        assert dispatch.choose("hash_grid", torch.device("cpu")) == "reference"
    with dispatch.force("gpu"), pytest.raises(ConfigError, match="`ngp_step` has no backend `gpu`"):
        dispatch.choose("ngp_step", torch.device("cpu"))
    with dispatch.force("cpu"), pytest.raises(ConfigError, match="cannot run on cuda tensors"):
        dispatch.choose("hash_grid", torch.device("cuda"))


def test_gpu_backend_accepts_cpu_tensors_in_the_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with dispatch.force("gpu"), pytest.raises(ConfigError, match="except in Triton's interpreter"):
        dispatch.choose("hash_grid", torch.device("cpu"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with dispatch.force("gpu"):
        assert dispatch.choose("hash_grid", torch.device("cpu")) == "gpu"


def test_dispatch_falls_back_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "numba_problem", lambda: "Numba cannot be imported (nope)")
    choice = dispatch.explain_one("march", "cpu")
    assert (choice.backend, choice.reason) == ("reference", "Numba cannot be imported (nope)")
