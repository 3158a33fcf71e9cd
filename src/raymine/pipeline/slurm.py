"""Places inside a Slurm allocation: its hosts and GPUs, where `srun` starts commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from raymine.errors import RunError

from .devices import Place


def inside_allocation() -> bool:
    """Whether this process runs inside a Slurm allocation from which it can start steps."""
    return bool(os.environ.get("SLURM_JOB_ID") and _node_list() and shutil.which("srun"))


def slurm_places(jobs: int | None) -> list[Place]:
    """Where commands run: one place for each GPU of each host, or for each host without GPUs.

    jobs: how many at a time; None is one for each place. More share the hosts that have no GPUs, and are too many for
    those that have. `RunError` if Slurm cannot name the hosts.
    """
    names, gpus = hosts(), gpus_of_a_host()
    count = len(names) * gpus if gpus else jobs or len(names)
    if gpus and jobs:
        count = min(count, jobs)
    each = -(-count // len(names))
    cpus = max(1, _cpus_of_a_host() // each)
    memory = _memory_of_a_host() // each
    share = {"OMP_NUM_THREADS": str(cpus), "NUMBA_NUM_THREADS": str(cpus)}
    found = []
    for i in range(count):
        host = names[i % len(names)]
        words = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--exact", f"--cpus-per-task={cpus}"]
        # Without its share, the first step would take the memory of the whole allocation on its host.
        words += [f"--mem={memory}M"] if memory else []
        # Slurm chooses the GPU, and lets the step see no other.
        words += ["--gres=gpu:1"] if gpus else []
        found.append(Place(f"{host} (Slurm)", {} if gpus else share, prefix=tuple(words)))
    return found


def hosts() -> list[str]:
    """The hosts of the allocation."""
    listed = _node_list()
    if "[" not in listed:
        return listed.split(",")
    try:
        command = ["scontrol", "show", "hostnames", listed]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(
            f"scontrol could not list the hosts {listed} of this Slurm allocation: {error}.",
            hint="Load Slurm's commands, or unset SLURM_JOB_ID to use this machine alone.",
        ) from error
    return done.stdout.split()


def gpus_of_a_host() -> int:
    """GPUs of this host that the allocation has; its other hosts are taken to have as many."""
    listed = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS")
    if listed:
        return len([name for name in listed.split(",") if name])
    for variable in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        # A number, with a kind of GPU before it: 2, or a100:2.
        found = re.search(r"(\d+)$", os.environ.get(variable, ""))
        if found:
            return int(found[1])
    return 0


def _node_list() -> str:
    return os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST") or ""


def _memory_of_a_host() -> int:
    """MiB on each host, if the allocation was asked for so; else 0. Slurm itself passes memory for each core on."""
    text = os.environ.get("SLURM_MEM_PER_NODE", "")
    return int(text) if text.isdecimal() else 0


def _cpus_of_a_host() -> int:
    """The least number of cores on a host; Slurm writes 16(x2),8 for two hosts with 16 and one with 8."""
    text = os.environ.get("SLURM_JOB_CPUS_PER_NODE") or os.environ.get("SLURM_CPUS_ON_NODE") or "1"
    return min((int(number) for number in re.findall(r"(?:^|,)(\d+)", text)), default=1)
