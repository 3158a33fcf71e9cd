"""A Ray cluster of two nodes on this machine, in a process of its own, on the loopback interface only.

`python -m support.ray_nodes` prints its address. A line on its standard input kills the second node; the end of the
input ends everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class RayNodes:
    """The cluster, from the process that started it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def kill_second(self) -> None:
        """Kill the node that does not lead, at once, with all that runs on it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("kill\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == "killed"


@contextmanager
def ray_nodes(cpus: int = 1) -> Iterator[RayNodes]:
    """Two nodes with `cpus` CPUs each."""
    command = [sys.executable, "-W", "ignore", "-m", "support.ray_nodes", str(cpus)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        kind, _, address = process.stdout.readline().partition(" ")
        assert kind == "address", "the cluster did not start"
        yield RayNodes(process, address.strip())
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _main() -> None:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": int(sys.argv[1]), "num_gpus": 0, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    second = cluster.add_node(**options)
    cluster.wait_for_nodes()
    print(f"address {cluster.address}", flush=True)
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    _main()
