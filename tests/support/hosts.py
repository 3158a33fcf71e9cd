"""Two network namespaces with a virtual cable between them: hosts that share nothing but a network."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_IP = shutil.which("ip", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


class Hosts:
    """Two hosts, 0 and 1."""

    def __init__(self, name: str) -> None:
        self._names = [f"{name}-{i}" for i in range(2)]
        self._ends = [f"{name}-e{i}" for i in range(2)]

    def prefix(self, host: int) -> list[str]:
        """What runs a command on that host."""
        return [str(_IP), "netns", "exec", self._names[host]]

    def connect(self) -> None:
        """Make the hosts, and lay the cable."""
        for name in self._names:
            _call("netns", "add", name)
        first, second = self._ends
        names = self._names
        _call("link", "add", first, "netns", names[0], "type", "veth", "peer", "name", second, "netns", names[1])
        for name, end, address in zip(names, self._ends, ADDRESSES, strict=True):
            _call("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _call("-n", name, "link", "set", end, "up")
            _call("-n", name, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Cut the cable: packets are lost, and nobody is told."""
        _call("-n", self._names[0], "link", "set", self._ends[0], "down")

    def remove(self) -> None:
        """Kill what runs on the hosts, and remove them. The cable goes with them."""
        for name in self._names:
            for pid in _call("netns", "pids", name, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.2)
        for name in self._names:
            _call("netns", "delete", name, check=False)


def why_not() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    if _IP is None:
        return "needs the program `ip` (iproute2)"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root, to make network namespaces"
    trial = Hosts(f"rm{uuid.uuid4().hex[:6]}")
    try:
        trial.connect()
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.strip()}"
    finally:
        trial.remove()
    return None


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two connected hosts, which are gone after the block together with all that ran on them."""
    hosts = Hosts(f"rm{uuid.uuid4().hex[:6]}")
    try:
        hosts.connect()
        yield hosts
    finally:
        hosts.remove()


def _call(*arguments: str, check: bool = True) -> str:
    """The output of `ip`."""
    done = subprocess.run([str(_IP), *arguments], capture_output=True, text=True, check=check, timeout=60)
    return done.stdout
