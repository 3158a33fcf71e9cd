"""`raymine train --processes`: what fails first decides whether the processes start again."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raymine.cli import main
from raymine.cli.training import launcher
from raymine.step.distributed.ranks import PeerLostError
from support.started import TRAIN, Starter, checkpoints, status

LOST = PeerLostError.exit_code
KILLED, TERMINATED = -signal.SIGKILL, -signal.SIGTERM


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """Exit codes of failed processes by rank, in the order in which they were seen; one item for each attempt."""
    planned: list[dict[int, int]] = []

    def run_once(count: int, port: int) -> dict[int, Any]:
        return {rank: SimpleNamespace(exitcode=code) for rank, code in planned.pop(0).items()}

    monkeypatch.setattr(launcher, "_run_once", run_once)
    # `launch` changes the environment for the processes that it starts.
    for name in ("OMP_NUM_THREADS", launcher.LAUNCHED, "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "1")
    return planned


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ({1: KILLED, 0: LOST}, "Process 1 of 2 was killed (SIGKILL)"),
        ({0: LOST, 1: KILLED}, "Process 1 of 2 was killed (SIGKILL)"),
        ({0: KILLED, 1: TERMINATED}, "Process 0 of 2 was killed (SIGKILL)"),
        ({1: -signal.SIGSEGV, 0: 143}, "Process 1 of 2 was killed (SIGSEGV)"),
        ({0: LOST, 1: TERMINATED}, "Process 0 of 2 lost contact with another process"),
    ],
)
def test_lost_process_starts_all_again_with_one_sentence(
    attempts: list[dict[int, int]], failures: dict[int, int], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts[:] = [failures, {}]
    assert launcher.launch(2, gpus=False, restarts=3) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {told}. All processes start again")
    assert line.endswith("(restart 1 of 3).")
    assert not attempts


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ({0: 2, 1: 2}, 2),
        ({1: 5, 0: LOST}, 5),
        ({0: LOST, 1: 5}, 5),
        ({0: 3, 1: TERMINATED}, 3),
        ({0: 130, 1: 130}, 130),
        ({0: 143, 1: 143}, 143),
        ({0: TERMINATED, 1: LOST}, 143),
    ],
)
def test_other_failures_end_the_run(attempts: list[dict[int, int]], failures: dict[int, int], code: int) -> None:
    attempts[:] = [failures]
    assert launcher.launch(2, gpus=False, restarts=3) == code


@pytest.mark.parametrize(("restarts", "words"), [(0, "SIGKILL)."), (1, "after 1 restart."), (2, "after 2 restarts.")])
def test_last_loss_is_an_error(attempts: list[dict[int, int]], restarts: int, words: str) -> None:
    attempts[:] = [{0: KILLED}] * (restarts + 1)
    with pytest.raises(PeerLostError, match=r"^Process 0 of 2 was killed") as found:
        launcher.launch(2, gpus=False, restarts=restarts)
    assert found.value.message.endswith(words)
    assert not attempts


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--processes 0", "--processes must be at least 1, got 0."),
        ("--processes 2 --max-restarts -1", "--max-restarts must be 0 or more, got -1."),
        ("--processes 2 --peer-timeout 0.5", "--peer-timeout must be 1 second to a day (86400 s), got 0.5."),
        ("--processes 2 --peer-timeout inf", "--peer-timeout must be 1 second to a day (86400 s), got inf."),
        ("--processes 100000", "--processes 100000: this machine has"),
        ("--processes 2 --gpus 2", "--gpus and --processes were both given"),
        ("--gpus 99", "--gpus 99: torch sees"),
    ],
)
def test_wrong_flags_are_refused_before_anything_starts(
    scene: Path, flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, *flags.split()]) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.timeout(1800)
def test_two_processes_write_a_complete_run(scene: Path, tmp_path: Path) -> None:
    with Starter(tmp_path).ended() as starter:
        run = starter.start(["raymine", *TRAIN, "--steps", "20", "--out", "run", "--processes", "2"])
        assert run.wait() == 0, run.output
    assert "Processes: 2" in run.output
    assert status(tmp_path / "run") == "finished"
    assert checkpoints(tmp_path / "run")[-1] == 20
    assert {"config.json", "metrics.jsonl", "events.jsonl"} <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.timeout(1800)
def test_user_error_is_told_once_and_not_repeated(scene: Path, tmp_path: Path) -> None:
    (scene / "transforms_train.json").write_text("{")
    with Starter(tmp_path).ended() as starter:
        run = starter.start(["raymine", *TRAIN, "--steps", "20", "--processes", "2"])
        assert run.wait() == 3, run.output
    assert len(run.errors()) == 1
    assert "restart" not in run.output
    assert "terminate called" not in run.output
    assert not (tmp_path / "runs").exists()
