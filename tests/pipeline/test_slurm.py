"""Hosts and GPUs of a Slurm allocation, from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.errors import RunError
from raymine.pipeline.slurm import gpus_of_a_host, hosts, inside_allocation, slurm_places


@pytest.fixture(autouse=True)
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEP_GPUS", "JOB_GPUS", "GPUS_ON_NODE", "GPUS_PER_NODE", "CPUS_ON_NODE", "MEM_PER_NODE"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    for name, text in (("scontrol", "echo n1; echo n2"), ("srun", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "16(x1),8")


def test_every_gpu_of_every_host_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside_allocation()
    assert hosts() == ["n1", "n2"]
    assert [place.environment["OMP_NUM_THREADS"] for place in slurm_places(None)] == ["8", "8"]
    assert len(slurm_places(5)) == 5
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "a100:4")
    assert gpus_of_a_host() == 4
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,3")
    found = slurm_places(None)
    assert [place.name for place in found] == ["n1 (Slurm)", "n2 (Slurm)"] * 2
    assert all("--gres=gpu:1" in place.prefix and "--cpus-per-task=4" in place.prefix for place in found)
    assert len(slurm_places(3)) == 3
    assert len(slurm_places(9)) == 4, "no more than there are GPUs"


@pytest.mark.parametrize(("text", "words"), [("10001", ["--mem=3333M"]), ("0", []), ("some", []), (None, [])])
def test_trials_share_the_memory_of_a_host(text: str | None, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if text is not None:
        monkeypatch.setenv("SLURM_MEM_PER_NODE", text)
    for place in slurm_places(5):
        assert [word for word in place.prefix if word.startswith("--mem")] == words


def test_hosts_that_cannot_be_listed_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(RunError, match="could not list the hosts"):
        slurm_places(None)
    monkeypatch.delenv("SLURM_JOB_ID")
    assert not inside_allocation()
