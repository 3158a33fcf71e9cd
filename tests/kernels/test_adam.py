"""Adam: steps by hand, every backend against the reference and torch, sparse and row updates, the gate, errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.adam.op import Rates, update, update_rows
from support.device import device_of

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_first_adam_step_matches_hand_computation(backend: dispatch.Backend) -> None:
    """After one step the corrected moments are g and g^2, so a parameter moves by lr against the sign of g."""
    device = device_of(backend)
    p, m, v = torch.ones(3, device=device), torch.zeros(3, device=device), torch.zeros(3, device=device)
    grad = torch.tensor([0.5, -2.0, 0.0], device=device)
    with dispatch.force(backend):
        update(p, grad, m, v, Rates(0.1, 0.9, 0.99, 1e-15, 0.0, 1), sparse=True)
    assert grad.tolist() == [0.5, -2.0, 0.0]
    assert p.tolist() == pytest.approx([0.9, 1.1, 1.0])
    assert m.tolist() == pytest.approx([0.05, -0.2, 0.0])
    assert v.tolist() == pytest.approx([0.0025, 0.04, 0.0])


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("n", [0, 1, 63, 1000])
def test_adam_agrees_with_reference_and_torch(n: int, sparse: bool, backend: str) -> None:
    start = torch.randn(n)
    where = {name: device_of(name) for name in (backend, "reference")}
    states = {k: (start.to(d, copy=True), torch.zeros(n, device=d), torch.zeros(n, device=d)) for k, d in where.items()}
    leaf = torch.nn.Parameter(start.clone())
    theirs = torch.optim.AdamW([leaf], lr=0.01, betas=(0.9, 0.99), eps=1e-10, weight_decay=0.3)
    for count in range(1, 6):
        grad = torch.randn(n)
        for name, (p, m, v) in states.items():
            with dispatch.force(name):  # type: ignore[arg-type]
                update(p, grad.to(p.device), m, v, Rates(0.01, 0.9, 0.99, 1e-10, 0.3, count), sparse=sparse)
        leaf.grad = grad
        theirs.step()
    for a, b in zip(states[backend], states["reference"], strict=True):
        assert torch.allclose(a.cpu(), b, rtol=1e-4, atol=1e-6)
    assert torch.allclose(states[backend][0].cpu(), leaf.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("n", [63, 1000])
def test_sparse_update_leaves_elements_with_zero_gradient_unchanged(n: int, momentum: bool, backend: str) -> None:
    """Also next to elements that have a gradient, since a kernel may update several at a time."""
    where = {name: device_of(name) for name in (backend, "reference")}
    start = torch.randn(n), torch.randn(n), torch.rand(n)
    states = {name: [part.to(device, copy=True) for part in start] for name, device in where.items()}
    ever = torch.zeros(n, dtype=torch.bool)
    for count in (5, 6):
        grad = torch.randn(n) * (torch.rand(n) < 0.3)
        ever |= grad != 0
        for name, (p, m, v) in states.items():
            with dispatch.force(name):  # type: ignore[arg-type]
                rates = Rates(0.01, 0.9 if momentum else 0.0, 0.97, 1e-10, 0.0, count)
                update(p, grad.to(p.device), m if momentum else None, v, rates, sparse=True)
    assert 0 < int(ever.sum()) < n
    for got, expected, before in zip(states[backend], states["reference"], start, strict=True):
        assert torch.equal(got.cpu()[~ever], before[~ever])
        assert torch.allclose(got.cpu(), expected.cpu(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_non_finite_gradient_leaves_parameters_unchanged(backend: dispatch.Backend, by_rows: bool) -> None:
    device = device_of(backend)
    start, grad = torch.randn(40, 2, device=device), torch.randn(40, 2, device=device)
    rows = torch.randperm(40, device=device)

    def after(gate: bool | None, grad: Tensor) -> list[Tensor]:
        p, m, v = start.clone(), start.sin(), start.square()
        rates = Rates(0.1, 0.9, 0.99, 1e-15, 0.3, 2, None if gate is None else torch.tensor(gate, device=device))
        with dispatch.force(backend):
            if by_rows:
                update_rows(p, rows, grad, m, v, rates)
            else:
                update(p, grad, m, v, rates)
        return [p, m, v]

    closed = after(False, grad.where(grad > 0, torch.nan))
    assert all(map(torch.equal, closed, [start, start.sin(), start.square()]))
    assert all(map(torch.equal, after(True, grad), after(None, grad)))


def test_non_contiguous_parameter_raises() -> None:
    p = torch.zeros(4, 2).T
    with pytest.raises(ConfigError, match="`parameter` must be contiguous"):
        update(p, p, p, p, Rates(0.1, 0.9, 0.99, 1e-8, 0.0, 1))


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
@pytest.mark.parametrize("beta1", [0.9, 0.0])
@pytest.mark.parametrize("k", [0, 1, 300])
def test_update_rows_equals_sparse_update(backend: dispatch.Backend, beta1: float, k: int) -> None:
    device = device_of(backend)
    start, dense = torch.randn(500, 4, device=device), torch.zeros(500, 4, device=device)
    rows = torch.randperm(500, device=device)[:k]
    grad = torch.randn(k, 4, device=device)
    grad[torch.rand(k, device=device) < 0.3, 1] = 0
    dense[rows] = grad
    rates = Rates(0.01, beta1, 0.99, 1e-15, 0.0, 3)
    results = []
    for by_rows in (False, True):
        p, v = start.clone(), torch.full_like(start, 0.2)
        m = torch.full_like(start, 0.1) if beta1 else None
        with dispatch.force(backend):
            if by_rows:
                update_rows(p, rows, grad, m, v, rates)
            else:
                update(p, dense, m, v, rates, sparse=True)
        results.append((p, v) if m is None else (p, m, v))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)
    assert torch.equal(results[1][0][dense == 0], start[dense == 0])


def test_adam_without_momentum_matches_hand_computation() -> None:
    p, v = torch.tensor([1.0, 1.0]), torch.tensor([4.0, 4.0])
    with pytest.raises(ConfigError, match=r"`m` must be None just where beta1 is 0; beta1 is 0\.9"):
        update(p, torch.ones(2), None, v, Rates(0.1, 0.9, 0.5, 1e-15, 0.0, 1))
    for backend in ("reference", "cpu", "gpu"):
        device = device_of(backend)
        p, v = torch.ones(2, device=device), torch.full((2,), 4.0, device=device)
        with dispatch.force(backend):  # type: ignore[arg-type]
            update(p, torch.tensor([2.0, -1.0], device=device), None, v, Rates(0.1, 0.0, 0.5, 1e-15, 0.0, 1))
        # v = (4 + g^2) / 2, corrected by 1 / (1 - 0.5): 8 and 5.
        assert p.tolist() == pytest.approx([1 - 0.2 / 8**0.5, 1 + 0.1 / 5**0.5])
