"""Processes of one run that a launcher other than raymine started: what they refuse, and how they end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymine.cli.training import processes
from raymine.errors import ConfigError
from raymine.step.distributed.meeting import Place
from support.listening import free_port
from support.started import TRAIN, Starter

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    with Starter(tmp_path).ended() as found:
        yield found


def test_rank_that_disagrees_about_the_config_is_named_once(scene: Path, starter: Starter, tmp_path: Path) -> None:
    port = free_port()
    ranks = [starter.rank(r, 2, port, *TRAIN, "--steps", "5", "--seed", str(r), "--out", "run") for r in range(2)]
    assert [each.wait() for each in ranks] == [2, 2]
    (message,) = ranks[0].errors()
    assert "Rank 1" in message
    assert "disagrees with rank 0 (" in message
    assert "seed" in message
    assert ranks[1].output == "", "rank 0 has told it"
    assert not (tmp_path / "run").exists()


def test_port_in_use_gets_a_sentence(scene: Path, starter: Starter) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        rank = starter.rank(0, 2, taken.getsockname()[1], *TRAIN, "--steps", "5")
        assert rank.wait() == 2
    (message,) = rank.errors()
    assert "is in use by another program" in message
    assert "Give another MASTER_PORT." in rank.output
    assert "Traceback" not in rank.output


@pytest.mark.parametrize(("name", "value"), [("RANK", "one"), ("WORLD_SIZE", "-1"), ("LOCAL_RANK", "1.5")])
def test_damaged_variable_of_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"^{name} must be a whole number, as torchrun sets it; got '{value}'"):
        processes._place()


def test_variables_that_cannot_be_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not processes.launched()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(ConfigError, match=r"^WORLD_SIZE is 2, and MASTER_ADDR and MASTER_PORT are not set"):
        processes.launched()
    with pytest.raises(ConfigError, match=r"^RANK is 5, and WORLD_SIZE is 2: ranks are 0 to 1"):
        processes._place()


def test_gloo_uses_loopback_for_one_machine_and_what_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    processes._choose_interface(Place(0, 2, 0, 2))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    processes._choose_interface(Place(0, 2, 0, 2))
    assert os.environ["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")


def test_ranks_go_on_when_the_run_that_they_began_with_is_gone(scene: Path, starter: Starter, tmp_path: Path) -> None:
    one = starter.start(["raymine", *TRAIN, "--steps", "2", "--out", "first"], {})
    assert one.wait() == 0
    for steps, more in (("2", []), ("4", ["--resume"])):
        port = free_port()
        begun = (*TRAIN, "--steps", steps, "--init-from", "first", "--out", "run", *more)
        assert [each.wait() for each in [starter.rank(r, 2, port, *begun) for r in range(2)]] == [0, 0]
        shutil.rmtree(tmp_path / "first/checkpoints", ignore_errors=True)
    assert json.loads((tmp_path / "run/manifest.json").read_text())["step"] == 4


def test_process_that_waits_for_others_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.01)
    monkeypatch.setenv("MASTER_ADDR", "there")
    monkeypatch.setenv("MASTER_PORT", "1234")
    with processes._telling_that_it_waits(Place(1, 3, 1, 3)):
        time.sleep(0.3)
    assert "Rank 1 of 3 waits for 2 other processes of this run, by way of there:1234." in capsys.readouterr().err
    monkeypatch.setattr(processes, "PATIENCE", 5.0)
    with processes._telling_that_it_waits(Place(1, 3, 1, 3)):
        pass
    assert capsys.readouterr().err == ""
