"""How the processes of a run find each other, and what they leave for those that are started in their place.

A launcher (torchrun, `raymine train --processes`) that restarts a run after a lost process keeps one key-value store
for all attempts. It still holds what lost processes wrote, their addresses among it, so each attempt writes under a
name of its own.
"""

from __future__ import annotations

import socket
import time
import uuid
from typing import NamedTuple

import psutil
import torch.distributed as dist

from raymine.errors import ConfigError

_PERIOD = 0.05


LOOPBACK = "127.0.0.1"


class Place(NamedTuple):
    """Where a process stands: its rank among `world` processes, and among the `local_world` ones of its machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int


class Notes:
    """Short texts by name, which outlive the processes of an attempt. Without a store, nothing is kept."""

    RUN = "run"
    """Folder of the run that an earlier attempt began."""
    REFUSED = "refused"
    """Exit code with which an earlier attempt ended, for a reason that another one would meet again."""

    def __init__(self, store: dist.Store | None = None) -> None:
        self._store = None if store is None else dist.PrefixStore("raymine/notes", store)

    def write(self, name: str, text: str) -> None:
        """Keep `text`, in place of an earlier one of that name."""
        if self._store is not None:
            self._store.set(name, text)

    def read(self, name: str) -> str | None:
        """The text of that name; None if there is none."""
        if self._store is None or not self._store.check([name]):
            return None
        return str(self._store.get(name).decode())


def loopback_store(port: int = 0) -> dist.TCPStore:
    """A store that listens on loopback alone: whoever reaches a store can send its processes elsewhere.

    port: 0 for any free one. `OSError` if it is in use.
    """
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((LOOPBACK, port))
        door.listen()
        port, descriptor = door.getsockname()[1], door.detach()
    return dist.TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=descriptor
    )


def await_master(address: str, port: int, limit: float) -> None:
    """Wait until something listens at the address of the store. `ConfigError` after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        try:
            with socket.create_connection((address, port), timeout=limit):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"No process answers at {address}:{port}, where rank 0 or the launcher should be "
                    f"({error.strerror or error}).",
                    hint="Start rank 0 too, and let every machine reach MASTER_ADDR and MASTER_PORT.",
                ) from error
        time.sleep(_PERIOD)


def name_attempt(store: dist.Store, place: Place, limit: float) -> str:
    """A name for this attempt that all of its ranks get, and no earlier one had.

    Each rank other than 0 shows a token of its own, and rank 0 answers it with the name. A token that rank 0 finds may
    be that of a lost process; so it goes on to answer until all ranks have confirmed. `ConfigError` after `limit`
    seconds.
    """
    own = uuid.uuid4().hex
    if place.rank > 0:
        store.set(f"raymine/token/{place.rank}", own)
        name = store.get(f"raymine/answer/{own}").decode()
        store.add(f"raymine/confirmed/{name}", 1)
        return name
    answered: dict[int, bytes] = {}
    deadline = time.monotonic() + limit
    while store.add(f"raymine/confirmed/{own}", 0) < place.world - 1:
        for rank in range(1, place.world):
            key = f"raymine/token/{rank}"
            token = store.get(key) if store.check([key]) else None
            if token is not None and answered.get(rank) != token:
                store.set(f"raymine/answer/{token.decode()}", own)
                answered[rank] = token
        if time.monotonic() > deadline:
            came = 1 + store.add(f"raymine/confirmed/{own}", 0)
            raise ConfigError(
                f"Only {came} of {place.world} processes came within {limit:g} s.",
                hint="Start as many processes as the world size says.",
            )
        time.sleep(_PERIOD)
    return own


def interface_to(address: str) -> str | None:
    """The network interface that routes to `address`; None if unknown.

    An address of this machine itself gives the interface that has it, a loopback address that of the default route.
    """
    for target in (address, "192.0.2.1"):
        own = _own_address(target)
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address == own for each in addresses) and not _is_loopback(name):
                return name
    return None


def loopback() -> str | None:
    """The name of the loopback interface."""
    return next((name for name in psutil.net_if_addrs() if _is_loopback(name)), None)


def _is_loopback(name: str) -> bool:
    return name in ("lo", "lo0")


def _own_address(target: str) -> str | None:
    """The address of this machine in packets to another. Connecting a datagram socket sends none."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None
