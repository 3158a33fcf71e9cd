"""The processes that train one run together: who they are, and what they tell each other during a step.

With W ranks, rank r takes a contiguous slice of the rays of a step. Random numbers of a ray go by its index among all
rays, a mean over rays divides by the number or weight of all rays, and gradients are summed. So a step of W ranks is
the step of one process over the same rays, up to the order of sums.

`SOLO` is a process on its own: nothing is sent, and every function returns what it was given. One rank of a world of
one sends its sums, as any other does, but has the rows of all ranks already.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from raymine.errors import ConfigError, TrainingError, option

from .meeting import LOOPBACK, Notes, Place, await_master, loopback_store, name_attempt


class PeerLostError(TrainingError):
    """Another process of the run has ended or does not answer."""

    exit_code = 8


_ALONE = Place(0, 1, 0, 1)


class Slice(NamedTuple):
    """The rays start .. stop - 1 of `total` rays: those of one rank."""

    start: int
    stop: int
    total: int

    def __len__(self) -> int:
        return self.stop - self.start


class Groups(NamedTuple):
    """The processes of a run as torch.distributed knows them.

    setup: a gloo group that waits long. control: a gloo group for what is on the host. data: the group for tensors on
    a device, of NCCL or gloo; gloo is given copies on the host.
    """

    setup: dist.ProcessGroup
    control: dist.ProcessGroup
    data: dist.ProcessGroup


class Ranks:
    """The processes of one run. `active`: whether there are others, or collectives are used all the same.

    timeout: seconds after which a peer that does not answer counts as lost. notes: what outlives these processes.
    gpus: which GPU each rank has, by rank; empty names for ranks without one.
    """

    def __init__(
        self,
        place: Place = _ALONE,
        groups: Groups | None = None,
        timeout: float = 0.0,
        notes: Notes | None = None,
        gpus: Sequence[str] = (),
    ) -> None:
        self.rank, self.world = place.rank, place.world
        own = gpus[place.rank] if gpus else ""
        self._sharing = gpus.count(own) if own else 1
        self.place, self.timeout, self.notes = place, timeout, notes or Notes()
        self._groups = groups
        self.active = groups is not None
        self._on_host = groups is None or dist.get_backend(groups.data) == "gloo"

    @property
    def _group(self) -> Groups:
        assert self._groups is not None, "a process on its own sends nothing"
        return self._groups

    @property
    def leads(self) -> bool:
        """Whether this process writes files, evaluates, and decides when the run ends."""
        return self.rank == 0

    @property
    def backend(self) -> str:
        """What tensors are sent by: `nccl` or `gloo`; empty for a process on its own."""
        return "" if self._groups is None else str(dist.get_backend(self._groups.data))

    def sharing(self, device: torch.device) -> int:
        """How many processes of this run use the memory of a GPU together; 1 on a CPU."""
        return self._sharing if device.type == "cuda" else 1

    def slice_of(self, rays: int) -> Slice:
        """The rays of this rank, of `rays` rays."""
        return Slice(rays * self.rank // self.world, rays * (self.rank + 1) // self.world, rays)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, of any shape. Without a graph."""
        if not self.active:
            return values
        total = values.clone()
        self.add_up(total)
        return total

    def add_up(self, values: Tensor) -> None:
        """Replace values of any shape by their sum over all ranks. With NCCL it can be part of a CUDA graph."""
        if not self.active:
            return
        sent = self._sent(values)
        with self._answering():
            dist.all_reduce(sent, group=self._group_for(sent))
        if sent is not values:
            values.copy_(sent)

    def rows(self, values: Tensor) -> tuple[Tensor, int]:
        """The rows of all ranks in order, and the index of the first own one. Counts of rows may differ."""
        if self.world == 1:
            return values, 0
        counts = [int(count) for (count,) in self.numbers([len(values)])]
        return self._rows(values, counts), sum(counts[: self.rank])

    def numbers(self, own: Sequence[int]) -> list[list[int]]:
        """Whole numbers of every rank, by rank. All ranks must give equally many. Does not wait for a device."""
        if self.world == 1:
            return [list(own)]
        sent = torch.tensor(own, dtype=torch.int64)
        found = [torch.empty_like(sent) for _ in range(self.world)]
        with self._answering():
            dist.all_gather(found, sent, group=self._group.control)
        return [each.tolist() for each in found]

    def rows_of_rays(self, values: Tensor, part: Slice) -> Tensor:
        """Values [R] of the own rays -> those of all rays, in order."""
        if not self.active:
            return values
        slices = [part.total * r // self.world for r in range(self.world + 1)]
        return self._rows(values, [stop - start for start, stop in itertools.pairwise(slices)])

    def gather_rows(self, rows: Tensor, values: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Rows [n] int64 and values [n, F] of all ranks, one after the other. counts: n of every rank."""
        return self._rows(rows, counts), self._rows(values, counts)

    def broadcast(self, values: Tensor) -> Tensor:
        """The values of rank 0, on every rank."""
        sent = self._sent(values.detach().clone())
        with self._answering():
            dist.broadcast(sent, 0, group=self._group_for(sent))
        return sent.to(values.device)

    def broadcast_numbers(self, own: Sequence[int]) -> list[int]:
        """Whole numbers of rank 0, on every rank; the others must give equally many."""
        sent = torch.tensor(own, dtype=torch.int64)
        with self._answering():
            dist.broadcast(sent, 0, group=self._group.control)
        return [int(number) for number in sent]

    def broadcast_object(self, own: Any) -> Any:
        """An object of rank 0 that can be pickled, on every rank."""
        box = [own]
        with self._answering():
            dist.broadcast_object_list(box, 0, group=self._group.control)
        return box[0]

    def gather_objects(self, own: Any) -> list[Any]:
        """An object of every rank that can be pickled, by rank. Waits long: ranks need not be equally quick."""
        found: list[Any] = [None] * self.world
        with self._answering(SETUP_SECONDS):
            dist.all_gather_object(found, own, group=self._group.setup)
        return found

    def meet(self) -> None:
        """Wait, long, until all ranks are here. `PeerLostError` if one of them has failed and told that instead."""
        if self.active and any(told is not None for told in self.gather_objects(None)):
            raise PeerLostError(f"Another process of this run failed (rank {self.rank} of {self.world} waited for it).")

    def await_device(self, device: torch.device) -> None:
        """Wait until a CUDA device has done what it was asked for. `PeerLostError` after `timeout` seconds.

        For ranks that send by NCCL: a device whose peer is lost never ends, and reading a value from it would wait for
        ever, deaf to signals.
        """
        if not self.active or self._on_host or device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        started = time.monotonic()
        while not event.query():
            waited = time.monotonic() - started
            if waited > self.timeout:
                raise self._lost(self.timeout, "the GPU is not done with the step")
            time.sleep(0.0 if waited < _EAGER else 1e-3)

    def outlast_leader(self) -> None:
        """Wait until rank 0 has ended. A launcher that sees another rank fail first would cut its last words off."""
        with contextlib.suppress(PeerLostError):
            self.broadcast_numbers([0])

    def _rows(self, values: Tensor, counts: Sequence[int]) -> Tensor:
        most = max(counts)
        if most == 0 or self.world == 1:
            return values.detach()
        padded = values.new_zeros(most, *values.shape[1:])
        padded[: len(values)] = values.detach()
        sent = self._sent(padded)
        found = [torch.empty_like(sent) for _ in counts]
        with self._answering():
            dist.all_gather(found, sent, group=self._group_for(sent))
        parts = [part[:count] for part, count in zip(found, counts, strict=True)]
        return torch.cat(parts).to(values.device)

    def _sent(self, values: Tensor) -> Tensor:
        """Values as the group takes them: on the host for gloo, on the device for NCCL."""
        values = values.contiguous()
        return values.cpu() if self._on_host else values

    def _group_for(self, sent: Tensor) -> dist.ProcessGroup:
        """The group that takes these values. NCCL takes none on the host, where some of a state are."""
        return self._group.control if sent.device.type == "cpu" else self._group.data

    @contextlib.contextmanager
    def _answering(self, seconds: float | None = None) -> Iterator[None]:
        """Turn the errors of torch.distributed about peers into `PeerLostError`. seconds: `timeout` if None."""
        try:
            yield
        except RuntimeError as error:
            within = self.timeout if seconds is None else seconds
            raise self._lost(within, _first_sentence(error)) from error

    def _lost(self, within: float, told: str) -> PeerLostError:
        return PeerLostError(
            f"Another process of this run has ended, or did not answer within {within:g} s (rank {self.rank} "
            f"of {self.world} waited for it: {told}).",
            hint=f"If the run has a checkpoint, continue it with {option('resume', True)}, with any number of "
            "processes.",
        )


_EAGER = 0.1
"""Seconds for which a device is asked without a pause between: about as long as a burst of steps takes."""

SETUP_SECONDS = 1800.0
"""How long ranks wait for each other while scenes are read and kernels are compiled: some need longer than others."""

SOLO = Ranks()
"""A process on its own."""

JOIN_SECONDS = 120.0
"""How long ranks wait for each other to start, at least: a busy machine takes long to import torch."""


def join(place: Place, device: torch.device, timeout: float) -> Ranks:
    """Join the processes that the environment names (MASTER_ADDR, MASTER_PORT), as torchrun sets it.

    Tensors go by NCCL where every rank has a GPU of its own, else by gloo: NCCL refuses two ranks on one GPU.
    `ConfigError` if the others are not there.
    """
    limit = max(JOIN_SECONDS, timeout)
    store = _store(place, limit)
    try:
        attempt = name_attempt(store, place, limit)
        own_store = dist.PrefixStore(attempt, store)
        dist.init_process_group(
            "gloo", store=own_store, rank=place.rank, world_size=place.world, timeout=timedelta(seconds=limit)
        )
        gpus = _gpus(device, place.world)
        groups = _groups(device, gpus, timeout)
    except RuntimeError as error:
        raise ConfigError(
            f"Rank {place.rank} of {place.world} could not connect to the others ({_first_sentence(error)}).",
            hint="Start as many processes as the world size says. If a machine has several networks, name the one to "
            "use in GLOO_SOCKET_IFNAME, such as eth0.",
        ) from error
    return Ranks(place, groups, timeout, Notes(store), gpus)


def among(place: Place, device: torch.device, timeout: float) -> Ranks:
    """The ranks of a process group that another program has made, such as a Lightning Trainer.

    All of its processes call this at the same time. The group stays that program's: it ends it.
    """
    gpus = _gpus(device, place.world)
    return Ranks(place, _groups(device, gpus, timeout), timeout, gpus=gpus)


def _gpus(device: torch.device, world: int) -> list[str]:
    """Which GPU every rank has, by rank; empty names for ranks without one."""
    found: list[str] = [""] * world
    dist.all_gather_object(found, _gpu(device))
    return found


def _groups(device: torch.device, gpus: list[str], timeout: float) -> Groups:
    """The groups of all ranks, with NCCL for tensors where no two ranks have the same GPU. gpus: by rank."""
    setup = dist.new_group(backend="gloo", timeout=timedelta(seconds=SETUP_SECONDS))
    control = data = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    if all(gpus) and len(set(gpus)) == len(gpus) and dist.is_nccl_available():
        if device.index is not None:
            torch.cuda.set_device(device)
        data = dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout))
    return Groups(setup, control, data)


def _gpu(device: torch.device) -> str:
    """Which GPU a rank has, in the world; empty without one."""
    if device.type != "cuda":
        return ""
    found = torch.cuda.get_device_properties(device)
    return (
        str(getattr(found, "uuid", "")) or f"{socket.gethostname()}/{device}/{os.environ.get('CUDA_VISIBLE_DEVICES')}"
    )


def _store(place: Place, limit: float) -> dist.Store:
    """The store at MASTER_ADDR, which a launcher holds, or else rank 0."""
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"MASTER_PORT must be the number of a port, got {port!r}.")
    if place.rank > 0:
        await_master(address, int(port), limit)
    try:
        alone = address in (LOOPBACK, "localhost") and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
        if place.rank == 0 and alone:
            return loopback_store(int(port))
        found = dist.rendezvous("env://", place.rank, place.world, timeout=timedelta(seconds=limit))
        return next(found)[0]
    except (RuntimeError, ValueError, OSError) as error:
        used = "EADDRINUSE" in str(error) or getattr(error, "errno", None) == errno.EADDRINUSE
        told = f"port {port} is in use by another program" if used else _first_sentence(error)
        raise ConfigError(
            f"Rank {place.rank} of {place.world} could not meet the others at {address}:{port}: {told}.",
            hint="Give another MASTER_PORT." if used else "Start as many processes as the world size says.",
        ) from error


def _first_sentence(error: Exception) -> str:
    """What torch says first, without its place in torch's source."""
    line = (str(error).strip().splitlines() or ["no detail given"])[0]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", line).partition(". ")[0].rstrip(".")[:200]


def leave() -> None:
    """Leave the processes that `join` joined. Not after an error: the others may be gone."""
    if dist.is_initialized():
        dist.destroy_process_group()
