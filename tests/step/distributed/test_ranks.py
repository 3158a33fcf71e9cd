"""Several processes that share the rays of each step, against one process with all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from raymine.step.distributed.meeting import Place
from raymine.step.distributed.ranks import SOLO, Groups, PeerLostError, Ranks, among, leave
from support.rank_steps import CASES, KINDS, Seen, launch

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Seen], dict[str, Seen]]:
    folder = tmp_path_factory.mktemp("ranks")
    return launch(folder, 1), launch(folder, 2)


@pytest.mark.parametrize("case", CASES)
def test_first_gradients_of_two_ranks_sum_to_those_of_one(
    case: str, one_and_two: tuple[dict[str, Seen], dict[str, Seen]]
) -> None:
    one, two = (seen[case].gradients for seen in one_and_two)
    assert one.keys() == two.keys()
    for name, gradient in one.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(two[name], gradient, rtol=0, atol=1e-5 * max(largest, 1e-8), msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_two_ranks_are_those_of_one_over_50_steps(
    kind: str, one_and_two: tuple[dict[str, Seen], dict[str, Seen]]
) -> None:
    one, two = (seen[kind].reports for seen in one_and_two)
    assert len(one) == 50
    for step, (alone, both) in enumerate(zip(one, two, strict=True)):
        assert both.loss == pytest.approx(alone.loss, rel=1e-3), step
        assert both.rays == alone.rays, step


@pytest.mark.parametrize("case", [*(f"{kind}, hard" for kind in KINDS), "multinomial", "poisson", "topk"])
def test_two_ranks_choose_the_samples_of_one_at_step_1(
    case: str, one_and_two: tuple[dict[str, Seen], dict[str, Seen]]
) -> None:
    one, two = (seen[case].chosen for seen in one_and_two)
    assert len(one) > 0
    assert torch.equal(one.sort().values, two.sort().values)


def test_slices_of_all_ranks_cover_every_ray_once() -> None:
    for rays in (3, 7, 64):
        slices = [Ranks(Place(rank, 3, rank, 3)).slice_of(rays) for rank in range(3)]
        assert [ray for part in slices for ray in range(part.start, part.stop)] == list(range(rays))
    assert SOLO.slice_of(5) == (0, 5, 5)


def test_ranks_among_processes_that_another_program_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ranks = among(Place(0, 1, 0, 1), torch.device("cpu"), 60.0)
        assert (ranks.active, ranks.backend, ranks.timeout) == (True, "gloo", 60.0)
        assert ranks.numbers([3, 4]) == [[3, 4]]
        assert ranks.sum(torch.ones(2)).tolist() == [1, 1]
    finally:
        leave()


def test_one_rank_of_one_sends_sums_and_has_the_rows_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: Any = Groups(setup="setup", control="gloo", data="gloo")  # type: ignore[arg-type]
    monkeypatch.setattr(dist, "get_backend", lambda group: group)
    sent = []
    for name in ("all_reduce", "all_gather"):
        monkeypatch.setattr(dist, name, lambda *_, name=name, **__: sent.append(name))
    ranks, values = Ranks(Place(0, 1, 0, 1), groups), torch.rand(3, 2)
    assert ranks.active
    assert torch.equal(ranks.sum(values), values)
    assert ranks.numbers([3, 4]) == [[3, 4]]
    assert torch.equal(ranks.rows(values)[0], values)
    assert torch.equal(ranks.rows_of_rays(values, ranks.slice_of(3)), values)
    assert torch.equal(ranks.gather_rows(torch.arange(3), values, [3])[1], values)
    assert sent == ["all_reduce"]


def test_what_is_on_the_host_does_not_go_by_the_group_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: Any = Groups(setup="setup", control="gloo", data="nccl")  # type: ignore[arg-type]
    monkeypatch.setattr(dist, "get_backend", lambda group: group)
    used = []

    def noted(*given: Any, group: Any) -> None:
        used.append((group, next(value for value in given if isinstance(value, torch.Tensor)).device.type))

    for name in ("broadcast", "all_reduce", "all_gather"):
        monkeypatch.setattr(dist, name, noted)
    ranks = Ranks(Place(0, 2, 0, 2), groups)
    for device in ("cpu", "meta"):
        ranks.broadcast(torch.zeros(3, device=device))
        ranks.sum(torch.zeros(3, device=device))
        ranks.gather_rows(torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(2, 3, device=device), [2, 2])
    assert used == [("gloo", "cpu")] * 4 + [("nccl", "meta")] * 4


def test_ranks_share_a_gpu_only_with_those_that_have_the_same_one() -> None:
    gpus = ["a", "b", "a", ""]
    found = [Ranks(Place(rank, 4, rank, 4), gpus=gpus).sharing(torch.device("cuda")) for rank in range(4)]
    assert found == [2, 1, 2, 1]
    assert Ranks(Place(0, 4, 0, 4), gpus=gpus).sharing(torch.device("cpu")) == 1
    assert SOLO.sharing(torch.device("cuda")) == 1


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_device_that_waits_for_a_lost_rank_is_given_up(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    asked = []

    class Event:
        def record(self, stream: object) -> None:
            assert stream == "stream"

        def query(self) -> bool:
            asked.append(1)
            return ends and len(asked) == 3

    monkeypatch.setattr(dist, "get_backend", lambda group: group)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "stream")
    groups: Any = Groups(setup="setup", control="gloo", data=backend)  # type: ignore[arg-type]
    ranks, device, ends = Ranks(Place(1, 2, 1, 2), groups, timeout=0.15), torch.device("cuda"), True
    ranks.await_device(device)
    assert len(asked) == (3 if backend == "nccl" else 0), "gloo has its own limit, and the device waits for nobody"
    ends = False
    if backend == "nccl":
        with pytest.raises(PeerLostError, match=r"within 0\.15 s \(rank 1 of 2 waited for it: the GPU is not done"):
            ranks.await_device(device)


def test_no_rows_of_any_rank_are_not_sent() -> None:
    groups: Any = Groups(setup="setup", control="gloo", data="gloo")  # type: ignore[arg-type]
    ranks = Ranks()
    ranks._groups, ranks.active = groups, True
    rows, values = ranks.gather_rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), [0])
    assert (rows.shape, values.shape) == ((0,), (0, 3))
