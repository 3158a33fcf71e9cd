"""Start several processes of a command on this machine, and start them again after one was lost."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raymine.errors import ConfigError

from .. import output
from .processes import LAUNCHED, quieten

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import ProcessFailure

MOST = 4
"""Processes for each core that are started at most."""

_STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals by which a user ends a process. Others mean that it was lost."""

_SAVING = 600
"""Seconds that processes have to end an evaluation and to save after Ctrl-C, before they are killed."""


def launch(count: int, gpus: bool, restarts: int) -> int:
    """Start this command `count` times on this machine, as torchrun would, and return the exit code of the run.

    gpus: every process needs a GPU of its own. restarts: how often all processes are started again after one was
    killed, or did not answer. They continue the run from its last checkpoint. `PeerLostError` after more losses.
    """
    _require(count, gpus)
    quieten()
    from torch.distributed.elastic.multiprocessing.api import SignalException

    from raymine.machine import cores
    from raymine.step.distributed.meeting import loopback_store
    from raymine.step.distributed.ranks import PeerLostError

    # Torch reads it since 2.11; before, it waits for 30 seconds.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SAVING))
    # The numbers of threads of torch and Numba: processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    os.environ[LAUNCHED] = str(os.getpid())
    # It outlives the processes, so that those of a restart find the notes of earlier ones.
    store = loopback_store()
    lost = "no process"
    try:
        for attempt in range(restarts + 1):
            if attempt > 0:
                output.warn(
                    f"{lost}. All processes start again, from the last checkpoint if there is one "
                    f"(restart {attempt} of {restarts})."
                )
            failures = _run_once(count, store.port)
            if not failures:
                return 0
            rank, code = _cause(failures, PeerLostError.exit_code)
            if code != PeerLostError.exit_code and (code > 0 or -code in _STOPS):
                return code if code > 0 else 128 - code
            how = f"was killed ({_signal_name(-code)})" if code < 0 else "lost contact with another process"
            lost = f"Process {rank} of {count} {how}"
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    again = f" after {restarts} restarts" if restarts > 1 else " after 1 restart" if restarts else ""
    raise PeerLostError(f"{lost}{again}.", hint="Continue the run from its last checkpoint with --resume.")


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _require(count: int, gpus: bool) -> None:
    if count < 1:
        raise ConfigError(f"{'--gpus' if gpus else '--processes'} must be at least 1, got {count}.")
    if not gpus and count > MOST * (os.cpu_count() or 1):
        raise ConfigError(
            f"--processes {count}: this machine has {os.cpu_count()} cores.",
            hint=f"Start at most {MOST} processes for each core; more than one per core rarely helps.",
        )
    if not gpus:
        return
    import torch

    found = torch.cuda.device_count()
    if count > found:
        raise ConfigError(
            f"--gpus {count}: torch sees {found or 'no'} CUDA device{'' if found == 1 else 's'} here.",
            hint="Use as many GPUs as there are. --processes N starts N processes on a CPU, or several on one GPU.",
        )


def _run_once(count: int, port: int) -> Mapping[int, ProcessFailure]:
    """Run the processes until all have succeeded, or one has failed, which ends the others. The failed ones by rank."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What they warn of is told in a sentence. Each module of torchrun has a level of its own.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"rank": 0},
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "raymine", *sys.argv[1:])
    except ChildFailedError as error:
        return dict(error.failures)
    return {}


def _cause(failures: Mapping[int, ProcessFailure], lost: int) -> tuple[int, int]:
    """Rank and exit code of the process whose failure ended the others.

    failures: in the order in which they were seen. lost: the exit code of those that failed since another did. Others
    were ended by a SIGTERM of the launcher.
    """
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    own = {rank: code for rank, code in codes.items() if code not in (lost, -signal.SIGTERM, 128 + signal.SIGTERM)}
    return next(iter((own or codes).items()))
