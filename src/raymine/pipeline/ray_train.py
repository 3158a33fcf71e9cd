"""One run on the workers of a Ray `TorchTrainer`: each worker trains one rank, as if torchrun had started it.

    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from raymine.pipeline.ray_train import train_rank

    trainer = TorchTrainer(
        train_rank,
        train_loop_config={"arguments": ["/shared/lego", "--out", "/shared/runs/lego", "--steps", "20000"]},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        torch_config=TorchConfig(backend="gloo"),  # Ray's own group carries one number; ranks choose NCCL themselves
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()

A rank is a process of its own beside its worker. So its group of processes is not that of Ray, its signals reach its
main thread, and it ends with the worker. Every start continues from the last checkpoint in `--out`, so when Ray starts
the workers again after one was lost, with as many or another number of them, little is lost.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, MissingExtraError, TrainingError
from raymine.files import JSON


def train_rank(config: Mapping[str, Any]) -> JSON:
    """Train the rank of this worker, and report the result to Ray. Every worker calls it with the same config.

    config: `arguments` has those of `raymine train`, the scene first, with `--out`, a folder that the worker of rank 0
    sees. Returns the result of the run on rank 0, and None on the others. `TrainingError` if the rank does not succeed.
    """
    try:
        from ray import train
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "Training on Ray") from error
    arguments = [str(word) for word in config["arguments"]]
    if "--out" not in arguments:
        raise ConfigError("`arguments` needs --out: workers that Ray starts again continue the run in that folder.")
    context = train.get_context()
    places = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
    }
    environment = {name: str(value) for name, value in places.items()} | _meeting_point(places["RANK"] == 0)
    result = _run(arguments, environment)
    # Ray counts a report as progress of all workers, so each of them reports.
    train.report({"step": result["step"], "psnr": result["test_psnr"]} if result else {})
    return result


def _run(arguments: list[str], environment: Mapping[str, str]) -> JSON:
    """Run `raymine train` as a rank. Returns what rank 0 prints."""
    resume = [] if "--resume" in arguments else ["--resume"]
    command = [sys.executable, "-m", "raymine.pipeline.child", str(os.getpid()), "raymine", "train", *arguments]
    with tempfile.TemporaryDirectory(prefix="raymine-rank-") as folder:
        log = Path(folder, "log")
        with open(log, "wb") as said:
            process = subprocess.Popen(
                [*command, *resume, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, **environment},
            )
            printed, _ = process.communicate()
        if process.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines[-1:]
            why = told[-1] if told else "it told no reason"
            raise TrainingError(f"Rank {environment['RANK']} ended with exit code {process.returncode}: {why}")
    return json.loads(printed) if printed.strip() else None


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
