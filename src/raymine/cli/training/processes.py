"""Several processes for one run: start them on this machine, or take part in those that torchrun started."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from raymine.errors import ConfigError

from .. import output

if TYPE_CHECKING:
    from collections.abc import Callable

    from raymine.experiment import TrainRequest
    from raymine.step.distributed.ranks import Place, Ranks


def launched() -> bool:
    """Whether torchrun, or another launcher with its variables, started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launch(count: int, gpus: bool) -> int:
    """Start this command `count` times on this machine, as torchrun would, and return the exit code of the run.

    gpus: every process needs a GPU of its own.
    """
    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from raymine.machine import cores

    flag = "--gpus" if gpus else "--processes"
    if count < 1:
        raise ConfigError(f"{flag} must be at least 1, got {count}.")
    if gpus and count > torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ConfigError(
            f"--gpus {count}: torch sees {found or 'no'} CUDA device{'' if found == 1 else 's'} here.",
            hint="Use as many GPUs as there are. --processes N starts N processes on a CPU, or several on one GPU.",
        )
    # The numbers of threads of torch and Numba: processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "raymine", *sys.argv[1:])
    except ChildFailedError as error:
        failure = error.failures.get(0) or next(iter(error.failures.values()))
        return 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def train_as_rank(request: TrainRequest, timeout: float, lead: Callable[[TrainRequest, Ranks], int]) -> int:
    """Take part in the run that the launcher describes. lead: what rank 0 does. Returns the exit code."""
    from raymine.experiment.follow import follow
    from raymine.experiment.prepare import resolve_device
    from raymine.experiment.several import EndedByLeaderError
    from raymine.step.distributed.ranks import join, leave

    place = _place()
    if not timeout >= 1:
        raise ConfigError(f"--peer-timeout must be at least 1 second, got {timeout:g}.")
    if request.out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        if place.rank > 0:
            return ConfigError.exit_code
        raise ConfigError(
            "torchrun with --max-restarts needs --out: a restarted group continues the run in that folder."
        )
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        # A worker was lost, and torchrun has started the group again: go on from the last checkpoint.
        request = replace(request, resume=True)
    _use_loopback(place)
    device = resolve_device(request.device)
    if device.type == "cuda":
        import torch

        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    request = replace(request, device=str(device))
    try:
        ranks = join(place, device, timeout)
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or ["no details"])[0]
        raise ConfigError(
            f"Rank {place.rank} of {place.world} could not join the others at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({reason[:200]}).",
            hint="Start as many processes as the world size says, and let them reach that address.",
        ) from error
    try:
        code = lead(request, ranks) if ranks.leads else follow(request, ranks)
    except EndedByLeaderError as ended:
        code = ended.exit_code
    leave()
    return code


def _place() -> Place:
    from raymine.step.distributed.ranks import Place

    numbers = []
    for name, other in (("RANK", ""), ("WORLD_SIZE", ""), ("LOCAL_RANK", "RANK"), ("LOCAL_WORLD_SIZE", "WORLD_SIZE")):
        value = os.environ.get(name) or os.environ.get(other, "")
        if not value.isdigit():
            raise ConfigError(f"{name} must be a whole number, as torchrun sets it; got {value!r}.")
        numbers.append(int(value))
    return Place(*numbers)


def _use_loopback(place: Place) -> None:
    """Let gloo use the loopback interface if all processes are on this machine, unless the user has chosen one."""
    if place.world != place.local_world or "GLOO_SOCKET_IFNAME" in os.environ or not hasattr(socket, "if_nameindex"):
        return
    names = {name for _, name in socket.if_nameindex()}
    for name in ("lo", "lo0"):
        if name in names:
            os.environ["GLOO_SOCKET_IFNAME"] = name


def say_ignored(count: int | None) -> None:
    """Tell that a flag for starting processes has no effect in a process that a launcher started."""
    if count is not None and os.environ.get("RANK") == "0" and os.environ.get("WORLD_SIZE") != str(count):
        output.warn(f"torchrun started {os.environ['WORLD_SIZE']} processes; --gpus and --processes are ignored.")
