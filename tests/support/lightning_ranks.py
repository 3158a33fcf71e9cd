"""Trains a tiny model with a Lightning Trainer of several processes on the CPU, as a program of its own.

Run by `launch`. Lightning starts the same command once more for each other rank of `ddp`. FOLDER gets the checkpoints
`step=N.ckpt`, what a CSVLogger logs, and what every process saw (`Seen`).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from raymine.step import TrainState
from raymine.step.distributed.meeting import loopback_store
from support.lightning_fits import (
    Callback,
    CSVLogger,
    ModelCheckpoint,
    RaymineData,
    RaymineModule,
    Trainer,
    module_of,
    quiet,
    trainer,
)

PROCESSES = 2


@dataclass
class Seen:
    """What one process saw of a fit. losses, rays: of each step. psnr: of the last validation.

    state: digest of the state at the end. after: that of the process which called `fit`, once the fit had ended.
    """

    world: int = 0
    losses: list[float] = field(default_factory=list)
    rays: list[float] = field(default_factory=list)
    psnr: float = 0.0
    wrapped: bool = False
    state: str = ""
    after: str = ""


def digest(state: TrainState) -> str:
    """Of every tensor of a state."""
    found = hashlib.sha256()
    for name, value in sorted(state.tensors().items()):
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


class Watch(Callback):
    """Notes `Seen` and writes it to `folder/rank-R.json` at the end of a fit."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.seen = folder, Seen()

    def on_train_batch_end(self, trainer: Trainer, pl_module: RaymineModule, *_: Any) -> None:  # type: ignore[override]
        seen, metrics = self.seen, trainer.callback_metrics
        seen.world, seen.wrapped = trainer.world_size, trainer.strategy.model is not pl_module
        seen.losses.append(float(metrics["loss"]))
        seen.rays.append(float(metrics["rays"]))

    def on_fit_end(self, trainer: Trainer, pl_module: RaymineModule) -> None:  # type: ignore[override]
        self.seen.psnr, self.seen.state = float(trainer.callback_metrics["test_psnr"]), digest(pl_module.state)
        if self.folder is not None:
            (self.folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(asdict(self.seen)))


def keep_in(folder: Path) -> ModelCheckpoint:
    """Saves every fifth step as `step=N.ckpt`."""
    return ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1, filename="{step}")


def launch(scene: Path, folder: Path, strategy: str, steps: int, start: Path | None = None) -> list[Seen]:
    """Fit with two processes, up to `steps`, from the checkpoint `start` if there is one. What each of them saw."""
    store = loopback_store()
    # Ranks find each other through this store. By default the first one listens on every network.
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "support.lightning_ranks", str(scene), str(folder), strategy, str(steps)]
    done = subprocess.run(
        [*command, *([str(start)] if start else [])],
        env={**os.environ, **env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Seen(**json.loads((folder / f"rank-{rank}.json").read_text())) for rank in range(PROCESSES)]


def main(scene: str, folder: Path, strategy: str, steps: int, start: str | None) -> None:
    data = RaymineData(scene, views=2)
    module = module_of(data)
    logger = CSVLogger(folder, name="log", version="one")
    several = trainer(
        steps, Watch(folder), keep_in(folder), devices=PROCESSES, strategy=strategy, logger=logger, log_every_n_steps=1
    )
    several.fit(module, data, ckpt_path=start)
    if several.is_global_zero:
        # With `ddp_spawn` this process has not trained: the processes that have are gone.
        trainer(steps, devices=1).validate(module, data, verbose=False)
        path = folder / "rank-0.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "after": digest(module.state)}))


if __name__ == "__main__":
    # Callbacks go to other processes under the name that those import them by, not as of `__main__`.
    from support import lightning_ranks

    _scene, _folder, _strategy, _steps, *_start = sys.argv[1:]
    with quiet():
        lightning_ranks.main(_scene, Path(_folder), _strategy, int(_steps), _start[0] if _start else None)
