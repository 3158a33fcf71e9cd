"""Runs of several processes of which some are killed, and runs that go on with another number of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.listening import free_port
from support.started import TRAIN, Started, Starter, checkpoints, final_psnr, rows, status

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

STEPS = "800"
BUILTIN = ("train", "builtin", "--downscale", "8", *TRAIN[2:])
NOISE = 0.1
"""dB by which runs on the built-in scene may differ whose sums were made in another order. Seeds differ by 0.06."""


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    with Starter(tmp_path).ended() as found:
        yield found


@pytest.fixture
def unbroken(scene: Path, starter: Starter, tmp_path: Path) -> float:
    """PSNR of a run of two processes that nothing interrupts."""
    run = starter.start(["raymine", *TRAIN, "--steps", STEPS, "--out", "unbroken", "--processes", "2"])
    assert run.wait() == 0, run.output
    return final_psnr(tmp_path / "unbroken")


def kill_both_in_turn(run: Started, folder: Path) -> None:
    """Kill rank 1 as soon as there are steps, mostly before there is a checkpoint, and rank 0 after the first one."""
    run.wait_until(lambda: rows(folder) > 0)
    run.kill_worker(1)
    run.wait_until(lambda: bool(checkpoints(folder)))
    run.kill_worker(0)


def test_killed_launcher_takes_its_processes_along(scene: Path, starter: Starter, tmp_path: Path) -> None:
    """Processes that went on would hold the run, which could not be continued."""
    run = starter.start(["raymine", *TRAIN, "--steps", STEPS, "--out", "run", "--processes", "2"])
    run.wait_until(lambda: rows(tmp_path / "run") > 0)
    workers = [worker for worker in (run.worker(0), run.worker(1)) if worker is not None]
    assert len(workers) == 2
    run.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    again = starter.start(["raymine", *TRAIN, "--steps", STEPS, "--out", "run", "--resume"])
    assert again.wait() == 0, again.output


def started_from(folder: Path) -> list[int]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["step"] for event in events if event["kind"] == "start"]


@pytest.mark.parametrize("named", [True, False])
def test_killed_workers_are_restarted_and_the_run_ends_as_if_nothing_was(
    scene: Path, starter: Starter, tmp_path: Path, unbroken: float, named: bool
) -> None:
    folder = tmp_path / "run" if named else tmp_path / "runs" / "scene-support.runs-tiny-1"
    out = ["--out", "run"] if named else []
    run = starter.start(["raymine", *TRAIN, "--steps", STEPS, *out, "--processes", "2"])
    kill_both_in_turn(run, folder)
    assert run.wait() == 0, run.output
    assert "Process 1 of 2 was killed (SIGKILL)" in run.output
    assert "Process 0 of 2 was killed (SIGKILL)" in run.output
    assert not run.errors()
    starts = started_from(folder)
    assert starts[0] == 0
    assert starts[2] > 0
    assert status(folder) == "finished"
    assert final_psnr(folder) == unbroken, "on a CPU, the sums of two processes have one order"


@pytest.mark.parametrize("meet", ["static", "c10d"])
def test_torchrun_restarts_killed_workers(
    scene: Path, starter: Starter, tmp_path: Path, unbroken: float, meet: str
) -> None:
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    if meet == "static":
        where = ["--master-port", str(free_port())]
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3", *where, "-m", "raymine"]
    run = starter.start([*launcher, *TRAIN, "--steps", STEPS, "--out", "run"])
    kill_both_in_turn(run, tmp_path / "run")
    assert run.wait() == 0, run.output
    starts = started_from(tmp_path / "run")
    assert starts[0] == 0
    assert starts[2] > 0
    assert final_psnr(tmp_path / "run") == unbroken


def test_torchrun_does_not_repeat_a_user_error(scene: Path, starter: Starter) -> None:
    (scene / "transforms_train.json").write_text("{")
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    run = starter.start([*launcher, "--master-port", str(free_port()), "-m", "raymine", *TRAIN, "--out", "run"])
    assert run.wait() == 1
    assert len(run.errors()) == 1, run.output
    assert "terminate called" not in run.output


def test_run_that_loses_too_many_ends_with_its_checkpoint(scene: Path, starter: Starter, tmp_path: Path) -> None:
    flags = ["--steps", STEPS, "--out", "run", "--processes", "2"]
    run = starter.start(["raymine", *TRAIN, *flags, "--max-restarts", "0"])
    run.wait_until(lambda: bool(checkpoints(tmp_path / "run")))
    run.kill_worker(1)
    assert run.wait() == 8
    (message,) = run.errors()
    assert message == "error: Process 1 of 2 was killed (SIGKILL)."
    again = starter.start(["raymine", *TRAIN, *flags, "--resume"])
    assert again.wait() == 0, again.output
    assert status(tmp_path / "run") == "finished"


def test_run_goes_on_with_two_one_and_two_processes(starter: Starter, tmp_path: Path) -> None:
    alone = starter.start(["raymine", *BUILTIN, "--steps", STEPS, "--out", "alone"])
    assert alone.wait() == 0, alone.output
    # The learning rate follows the limit of the run, so that each part is stopped instead of limited.
    for part, count in enumerate(("2", "1", "2"), 1):
        flags = ["--steps", STEPS, "--out", "run", "--resume", "--processes", count]
        run = starter.start(["raymine", *BUILTIN, *flags])
        if part < 3:
            run.wait_until(lambda part=part: saved_in(tmp_path / "run", part))  # type: ignore[misc]
            leader = run.worker(0)
            assert leader is not None
            leader.terminate()
            assert run.wait() == 143, run.output
            assert status(tmp_path / "run") == "stopped"
        else:
            assert run.wait() == 0, run.output
    starts = started_from(tmp_path / "run")
    assert starts[0] == 0
    assert 0 < starts[1] < starts[2] < int(STEPS)
    assert final_psnr(tmp_path / "run") == pytest.approx(final_psnr(tmp_path / "alone"), abs=NOISE)


def saved_in(folder: Path, part: int) -> bool:
    """Whether a checkpoint was saved since the training started for the n-th time."""
    if not (folder / "events.jsonl").exists():
        return False
    kinds = [json.loads(line)["kind"] for line in (folder / "events.jsonl").read_text().splitlines()]
    starts = [i for i, kind in enumerate(kinds) if kind == "start"]
    return len(starts) == part and "checkpoint" in kinds[starts[-1] :]
