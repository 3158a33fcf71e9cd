"""Take part in a run as one of the processes that torchrun, or `raymine train --processes`, started."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raymine.errors import ConfigError, RaymineError, RunError
from raymine.lifetime import end_with

from .. import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raymine.experiment import TrainRequest
    from raymine.step.distributed.meeting import Notes, Place
    from raymine.step.distributed.ranks import Ranks

LAUNCHED = "RAYMINE_LAUNCHED"
"""Variable of the processes that raymine started itself: the process id of their launcher.

They end with it, and it tells which of them was lost.
"""

PATIENCE = 5.0
"""Seconds after which a process says that it waits for others."""


def launched() -> bool:
    """Whether torchrun, or another launcher with its variables, started this process as one of several.

    `ConfigError` if WORLD_SIZE says so and other variables are missing: each process would train a run of its own.
    """
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    world = os.environ.get("WORLD_SIZE", "")
    if missing and world.isdigit() and int(world) > 1:
        raise ConfigError(
            f"WORLD_SIZE is {world}, and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
            hint="Start the processes with torchrun, which sets all of them; or unset WORLD_SIZE to train alone.",
        )
    return not missing


def quieten() -> None:
    """Keep torch from writing stack traces about connections, which raymine tells in a sentence.

    Takes effect only before torch is imported, and not where the user has set the variable.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def train_as_rank(request: TrainRequest, timeout: float, lead: Callable[[TrainRequest, Ranks], int]) -> int:
    """Take part in the run that the launcher describes. lead: what rank 0 does. Returns the exit code."""
    import torch

    from raymine.kernels import dispatch
    from raymine.step.distributed.ranks import PeerLostError, join, leave

    place = _place()
    launcher = os.environ.get(LAUNCHED)
    if launcher is not None:
        end_with(int(launcher))
    _choose_interface(place)
    device = torch.device("cpu")
    if request.device == "auto" and dispatch.triton_problem():
        request = replace(request, device="cpu")
    if request.device != "cpu" and torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        request = replace(request, device=str(device))
    with _telling_that_it_waits(place):
        ranks = join(place, device, timeout)
    refused = ranks.notes.read(ranks.notes.REFUSED)
    code = int(refused) if refused is not None else _take_part(request, ranks, lead)
    if code == 0 and ranks.backend != "nccl":
        leave()
        return 0
    if code == 0:
        # NCCL waits in its teardown for graphs that hold its kernels, which live until the next garbage collection.
        ranks.meet()
    elif not ranks.leads and code != PeerLostError.exit_code:
        ranks.outlast_leader()
    _skip_teardown(code)
    return code


@contextlib.contextmanager
def _telling_that_it_waits(place: Place) -> Iterator[None]:
    """Say what is being waited for if the others do not come at once."""
    others = "another process" if place.world == 2 else f"{place.world - 1} other processes"
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    told = f"Rank {place.rank} of {place.world} waits for {others} of this run, by way of {where}."
    timer = threading.Timer(PATIENCE, output.say, [told])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _take_part(request: TrainRequest, ranks: Ranks, lead: Callable[[TrainRequest, Ranks], int]) -> int:
    """Lead the run, or follow; the exit code, where nothing is left to tell."""
    from raymine.experiment.follow import follow
    from raymine.experiment.several import EndedByLeaderError
    from raymine.step.distributed.ranks import PeerLostError

    try:
        return lead(_continued(request, ranks.notes), ranks) if ranks.leads else follow(request, ranks)
    except EndedByLeaderError as ended:
        return ended.exit_code
    except PeerLostError as lost:
        _skip_teardown(lost.exit_code)
        if LAUNCHED not in os.environ and ranks.place.local_rank == 0:
            raise
        return lost.exit_code
    except RaymineError as error:
        # torchrun restarts whatever fails. The processes that it starts end with this code.
        ranks.notes.write(ranks.notes.REFUSED, str(error.exit_code))
        _skip_teardown(error.exit_code)
        raise
    except BaseException as error:
        _skip_teardown(130 if isinstance(error, KeyboardInterrupt) else 1)
        raise


def _skip_teardown(code: int) -> None:
    """Let this process end with `code` before torch takes its connections down.

    Where other processes have gone, or wait for this one, that can hang or abort.
    """

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(end)


def _continued(request: TrainRequest, notes: Notes) -> TrainRequest:
    """The request, or one for the run that an earlier attempt of this launch began."""
    from raymine.run_files import is_run

    begun = notes.read(notes.RUN)
    if begun is None:
        return request
    if not is_run(Path(begun)):
        raise RunError(
            f"{begun}, the run that these processes began, is not on this machine, where rank 0 was restarted.",
            hint="Give --out a folder that every machine sees.",
        )
    return replace(request, out=Path(begun), resume=True)


def _place() -> Place:
    from raymine.step.distributed.meeting import Place

    numbers = []
    for name, other in (("RANK", ""), ("WORLD_SIZE", ""), ("LOCAL_RANK", "RANK"), ("LOCAL_WORLD_SIZE", "WORLD_SIZE")):
        value = os.environ.get(name) or os.environ.get(other, "")
        if not value.isdigit():
            raise ConfigError(f"{name} must be a whole number, as torchrun sets it; got {value!r}.")
        numbers.append(int(value))
    place = Place(*numbers)
    if place.rank >= place.world:
        raise ConfigError(
            f"RANK is {place.rank}, and WORLD_SIZE is {place.world}: ranks are 0 to {place.world - 1}.",
            hint="Start the processes with torchrun, which sets both.",
        )
    return place


def _choose_interface(place: Place) -> None:
    """Let gloo use the network that leads to the other machines, unless the user has chosen one.

    By default it takes the address that the name of this machine stands for, which others often cannot reach.
    """
    from raymine.step.distributed.meeting import interface_to, loopback

    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = loopback() if place.world == place.local_world else interface_to(os.environ["MASTER_ADDR"])
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def say_ignored(count: int | None) -> None:
    """Tell that a flag for starting processes has no effect in a process that a launcher started."""
    if count is not None and os.environ.get("RANK") == "0" and os.environ.get("WORLD_SIZE") != str(count):
        output.warn(f"torchrun started {os.environ['WORLD_SIZE']} processes; --gpus and --processes are ignored.")
