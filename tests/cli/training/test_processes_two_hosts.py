"""One run on two hosts that share nothing but a network, which is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hosts import ADDRESSES, Hosts, two_hosts, why_not
from support.started import Starter, checkpoints, status

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

PORT = "29500"
PEER_TIMEOUT = 15
TRAIN = ["train", "builtin", "--downscale", "8", "--recipe", "support.runs:tiny", "--device", "cpu", "--steps", "1200"]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts() as found:
        yield found


@pytest.fixture
def starter(hosts: Hosts, tmp_path: Path) -> Iterator[Starter]:
    with Starter(tmp_path).ended() as found:
        yield found


def test_run_whose_cable_is_cut_fails_cleanly_and_continues_on_one_host(
    hosts: Hosts, starter: Starter, tmp_path: Path
) -> None:
    meet = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", ADDRESSES[0], "--master-port", PORT]
    command = ["-m", "raymine", *TRAIN, "--peer-timeout", str(PEER_TIMEOUT)]
    ends = [
        starter.start(
            ["torch.distributed.run", *meet, "--node-rank", str(i), *command, "--out", f"run-{i}"],
            prefix=hosts.prefix(i),
        )
        for i in range(2)
    ]
    run = tmp_path / "run-0"
    ends[0].wait_until(lambda: bool(checkpoints(run)))
    hosts.cut()
    for end in ends:
        assert end.wait() == 1, end.output
        (message,) = end.errors()
        assert f"did not answer within {PEER_TIMEOUT} s" in message
        assert "terminate called" not in end.output
    assert "Processes: 2" in ends[0].output
    assert status(run) == "failed"
    assert not (tmp_path / "run-1").exists(), "rank 0 alone writes"

    alone = starter.start(["raymine", *TRAIN, "--out", "run-0", "--resume"], prefix=hosts.prefix(0))
    assert alone.wait() == 0, alone.output
    assert status(run) == "finished"
    starts = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["step"] > 0 for event in starts if event["kind"] == "start"] == [False, True]


def test_torchrun_goes_on_with_the_host_that_is_left(hosts: Hosts, starter: Starter, tmp_path: Path) -> None:
    ends = [
        starter.start(
            [
                *["torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"],
                *["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--local-addr", ADDRESSES[i]],
                # With fewer than two hosts, wait so many seconds for more.
                *["--rdzv-conf", f"is_host={1 - i},last_call_timeout=60"],
                *["-m", "raymine", *TRAIN, "--peer-timeout", str(PEER_TIMEOUT), "--out", f"run-{i}"],
            ],
            prefix=hosts.prefix(i),
        )
        for i in range(2)
    ]
    run = tmp_path / "run-0"
    ends[0].wait_until(lambda: bool(checkpoints(run)))
    hosts.cut()
    assert ends[0].wait() == 0, ends[0].output
    assert "Processes: 2" in ends[0].output
    assert "Processes: 1" in ends[0].output
    assert status(run) == "finished"
