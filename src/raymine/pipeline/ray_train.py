"""One run on the workers of a Ray `TorchTrainer`: each worker trains one rank, as if torchrun had started it.

    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from raymine.pipeline.ray_train import train_rank

    trainer = TorchTrainer(
        train_rank,
        train_loop_config={"scene": "/shared/lego", "out": "/shared/runs/lego", "steps": 20000},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        torch_config=TorchConfig(backend="gloo"),  # Ray's own group carries one number; ranks choose NCCL themselves
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )
    print(trainer.fit().return_value)  # what `raymine train --json` prints

A rank is a process of its own beside its worker. So its group of processes is not that of Ray, its signals reach its
main thread, and it ends with the worker. Every start continues from the last checkpoint in `out`, so when Ray starts
the workers again after one was lost, with as many or another number of them, little is lost.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from typing import Any

from raymine.errors import ConfigError, MissingExtraError, TrainingError
from raymine.files import JSON

from .run import words_of

_GRACE = 50.0
"""Seconds in which a rank may save its work, after its worker could not go on."""
_REMEMBERED = 50
"""Lines of a rank among which the reason of its failure is looked for."""


def train_rank(config: Mapping[str, Any]) -> JSON:
    """Train the rank of this worker. Every worker calls it with the same config.

    config: `scene`, and options of `raymine train` by name, with `out`, a folder that the worker of rank 0 sees.
    Returns the result of the run on rank 0, and None on the others. `TrainingError` if the rank does not succeed.
    """
    try:
        from ray import train
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "Training on Ray") from error
    for name, why in (("scene", "a scene folder"), ("out", "where workers that Ray starts again continue the run")):
        if not config.get(name):
            raise ConfigError(f"The config of the training function needs `{name}`: {why}.")
    context = train.get_context()
    places = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
    }
    environment = {name: str(value) for name, value in places.items()} | _meeting_point(places["RANK"] == 0)
    return _run(config, environment)


def _run(config: Mapping[str, Any], environment: Mapping[str, str]) -> JSON:
    """Run `raymine train` as a rank, and pass on what it tells. Returns what rank 0 prints."""
    options = {name: value for name, value in config.items() if name != "scene"} | {"resume": True, "json": True}
    words = ["raymine", "train", str(config["scene"]), *words_of(options)]
    command = [sys.executable, "-m", "raymine.pipeline.child", str(os.getpid()), *words]
    told: deque[str] = deque(maxlen=_REMEMBERED)
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
        ) as process,
    ):
        assert process.stderr is not None
        try:
            for line in process.stderr:
                sys.stderr.write(line)
                told.append(line.strip())
        except BaseException:
            # The end of this block waits for the rank, which would otherwise train to its end.
            _end(process)
            raise
        if process.wait():
            errors = [line.removeprefix("error: ") for line in told if line.startswith("error: ")] or [*told][-1:]
            why = errors[-1] if errors else "it told no reason"
            raise TrainingError(f"Rank {environment['RANK']} ended with exit code {process.returncode}: {why}")
        printed.seek(0)
        text = printed.read().strip()
    return json.loads(text) if text else None


def _end(process: subprocess.Popen[str]) -> None:
    """Let a rank save its work and end; end it by force if that takes too long."""
    process.terminate()
    try:
        # What it still tells is read, so that it does not wait for that.
        process.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()


def _meeting_point(leads: bool) -> dict[str, str]:
    """Where the ranks meet: a free port on the host of rank 0. Ray's own group of workers tells the others."""
    import torch.distributed as dist

    port = [0]
    if leads:
        with socket.socket() as free:
            free.bind(("", 0))
            port = [free.getsockname()[1]]
    dist.broadcast_object_list(port, 0)
    return {"MASTER_ADDR": os.environ["MASTER_ADDR"], "MASTER_PORT": str(port[0])}
