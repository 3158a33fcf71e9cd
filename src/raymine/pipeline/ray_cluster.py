"""Places on a Ray cluster: the trials of a sweep run as processes of its nodes, and are otherwise those of one machine.

The process that reads the sweep file plans, retries and records. A trial is a task of Ray that starts the trial's
command and lives as long as it does: when the node, the task or the sweep ends, so does the command. Ray itself retries
nothing. Folders are not carried: every node must see those of the sweep and of the scene.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, MissingExtraError, RunError, option
from raymine.machine import cores

from .devices import LOST, Place, visible_gpus

_ANSWER = 5.0
"""Seconds in which the address of a cluster must accept a connection."""
_HEALTH = 30.0
"""Seconds in which what listens there must prove to be Ray."""
_GRACE = 50.0
"""Seconds in which a trial may save its work; less than the sweep waits for it."""
_OBJECTS = 100 << 20
"""Bytes of a local cluster for objects. Trials exchange files only."""
_PASSED_ON = ("RAYMINE_", "PYTHONPATH", "NUMBA_")
"""Variables of this process that trials on other hosts get too, by the beginnings of their names."""


@dataclass(frozen=True)
class Share:
    """What a trial takes of a cluster. count: trials at the same time."""

    count: int
    cpus: float
    gpus: int


@contextlib.contextmanager
def ray_places(jobs: int | None, address: str | None = None) -> Iterator[list[Place]]:
    """Where commands run within the block: places of the cluster at `address` or, without one, of a local cluster.

    The local one is started here and stopped at the end of the block. It listens on the loopback interface: other
    machines cannot reach it, but other users of this one can, and by default Ray asks for no password. jobs: how many
    run at a time; None is one for each GPU, or for each node without GPUs. `ConfigError` if no cluster answers,
    `MissingExtraError` without the package.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == "local":
        # Ray then takes the loopback address for its own on Linux too, and listens there only.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = require_ray()
    if address == "local":
        gpus = len(visible_gpus())
        start: dict[str, Any] = {"num_cpus": max(cores(), gpus), "num_gpus": gpus, "include_dashboard": False}
        start |= {"_node_ip_address": "127.0.0.1", "object_store_memory": _OBJECTS}
    else:
        start = {}
        _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **start)
    except (OSError, ImportError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _absent(address, _first_line(error)) from error
    try:
        share = share_of([node["Resources"] for node in ray.nodes() if node["Alive"]], jobs)
        if share is None:
            raise ConfigError(f"The Ray cluster at {address} has no CPUs and no GPUs.", hint="Start nodes that have.")
        yield [_place(ray, share) for _ in range(share.count)]
    finally:
        ray.shutdown()


def require_ray() -> Any:
    """The module ray; `MissingExtraError` if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", "ray", option("on", "ray")) from error


def share_of(nodes: list[dict[str, float]], jobs: int | None) -> Share | None:
    """How trials share the nodes, given the resources of each by name; None if there are none to share.

    With GPUs, a trial takes one. Without, it takes its part of the CPUs of the smallest node.
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if gpus:
        return Share(jobs or gpus, 1, 1)
    cpus = [node["CPU"] for node in nodes if node.get("CPU", 0) > 0]
    if not cpus:
        return None
    count = jobs or len(cpus)
    each = -(-count // len(cpus))
    part = min(cpus) / each
    return Share(count, int(part) if part >= 1 else round(part, 3), 0)


def run_on_node(words: list[str], folder: str, environment: dict[str, str], printed: str, log: str) -> tuple[int, str]:
    """The task: run a command of `raymine.pipeline.child` on this node. Returns its exit code, and what was wrong.

    folder: where it runs. printed, log: files for what it prints and for its stderr. A cancelled task ends its command
    as a signal would.
    """
    until = time.monotonic() + _ANSWER
    while not Path(log).exists():
        # Other hosts may see a new file a little later.
        if time.monotonic() > until:
            return 1, f"{socket.gethostname()} does not see {log}: every node must see the folder of the sweep"
        time.sleep(0.1)
    command = [sys.executable, "-m", "raymine.pipeline.child", str(os.getpid()), *words]
    process = None
    try:
        with open(printed, "wb") as out, open(log, "ab") as err:
            err.write(f"on {socket.gethostname()}\n".encode())
            err.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder if Path(folder).is_dir() else None,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        while process.poll() is None:
            time.sleep(0.1)
    except KeyboardInterrupt:
        if process is None:
            raise
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait(), ""


class RayProcess:
    """A trial on the cluster, with the methods of `subprocess.Popen` that the pipeline uses."""

    stdin = None

    def __init__(self, ray: Any, task: Any, log: Path) -> None:
        self._ray, self._task, self._log = ray, task, log
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it waits for a node or runs. `LOST` if the node that ran it is gone.

        `RunError` if the cluster itself does not answer, here and in the other methods.
        """
        if self.returncode is not None:
            return self.returncode
        with _answering(self._ray):
            ended = self._ray.wait([self._task], timeout=0)[0]
        if ended:
            self.returncode, why = self._outcome()
            if why:
                with open(self._log, "a") as log:
                    log.write(f"error: {why}.\n")
        return self.returncode

    def terminate(self) -> None:
        """Ask it to save its work and end."""
        with _answering(self._ray):
            self._ray.cancel(self._task)

    def kill(self) -> None:
        with _answering(self._ray):
            self._ray.cancel(self._task, force=True)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.05)
        return code

    def _outcome(self) -> tuple[int, str]:
        kinds = self._ray.exceptions
        try:
            code, why = self._ray.get(self._task)
            return int(code), str(why)
        except kinds.TaskCancelledError:
            return -signal.SIGTERM, ""
        except (kinds.NodeDiedError, kinds.WorkerCrashedError, kinds.LocalRayletDiedError):
            return LOST, "the node or the worker of Ray that ran it was lost"
        except kinds.OutOfMemoryError:
            return 1, "its node ran out of memory, and Ray ended it"
        except kinds.RayError as error:
            # An error of the task is of this kind too, whatever else it is.
            return 1, _first_line(error)
        except (OSError, RuntimeError) as error:
            raise _gone(error) from error


def _place(ray: Any, share: Share) -> Place:
    task = ray.remote(run_on_node).options(
        num_cpus=share.cpus, num_gpus=share.gpus, max_retries=0, scheduling_strategy="SPREAD"
    )
    threads = str(max(1, int(share.cpus)))
    own = {} if share.gpus else {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    return Place("Ray", start=partial(_start, ray, task, {**passed, **own}))


def _start(
    ray: Any, task: Any, environment: dict[str, str], words: list[str], folder: Path, printed: Path, log: Path
) -> RayProcess:
    paths = (str(path.absolute()) for path in (printed, log))
    with _answering(ray):
        return RayProcess(ray, task.remote(words, str(folder.absolute()), environment, *paths), log)


@contextlib.contextmanager
def _answering(ray: Any) -> Iterator[None]:
    """Raise `RunError` if the cluster does not answer. Not for fetching results, which raises errors of tasks."""
    try:
        yield
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        raise _gone(error) from error


def _gone(error: BaseException) -> RunError:
    return RunError(
        f"The Ray cluster does not answer any more: {_first_line(error)}.",
        hint="What has finished is kept. The same command goes on with the rest, on that cluster or another one.",
    )


def _require_answer(address: str) -> None:
    """Raise `ConfigError` if nothing answers there. Ray would try for long, and end this process when it gives up."""
    if address == "auto":
        return
    found = re.fullmatch(r"(ray://)?(\[[^\]]+\]|[^:/\s]+):(\d{1,5})", address)
    if found is None:
        raise ConfigError(
            f"{option('ray_address', address)} is not an address.",
            hint="Give HOST:PORT, as Ray shows where it was started.",
        )
    client, host, port = found[1], found[2].strip("[]"), found[3]
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _absent(address, _first_line(error)) from error
    if client:
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", f"{found[2]}:{port}"]
    try:
        healthy = subprocess.run(command, capture_output=True, timeout=_HEALTH).returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        raise _absent(address, "what listens there does not answer as Ray does")


def _absent(address: str, why: str) -> ConfigError:
    if address == "local":
        return ConfigError(f"A local Ray cluster could not be started: {why}.", hint=f"Use {option('on', 'local')}.")
    return ConfigError(
        f"There is no Ray cluster at {address} that this process can join: {why}.",
        hint=f"Give the address of one with {option('ray_address')} or RAY_ADDRESS, and start the sweep on one of its "
        "hosts. Without either, a local one is started.",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
