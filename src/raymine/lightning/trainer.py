"""What a Lightning `Trainer` asks for, in raymine's terms: the precision of a step, and the processes that take it.

raymine does both by itself, so within `in_charge` Lightning does neither. Its precision plugins would cast and scale
the whole step a second time. Its DDP wrapper would sum gradients a second time, and refuses a module without
parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    SingleDeviceStrategy,
    Strategy,
    XLAStrategy,
)
from pytorch_lightning.strategies.launchers import _MultiProcessingLauncher

from raymine.errors import ConfigError
from raymine.kernels.threads import using_threads
from raymine.step.config import Amp
from raymine.step.distributed.meeting import Place
from raymine.step.distributed.ranks import SETUP_SECONDS, SOLO, PeerLostError, Ranks, among

_AMP: dict[str, Amp | None] = {"32-true": None, "16-mixed": "fp16", "bf16-mixed": "bf16"}
"""The setting `amp` for each precision of a Trainer; None leaves the one of the recipe."""


def amp_of(trainer: Trainer) -> Amp | None:
    """The `amp` that the precision of the Trainer stands for; None for the recipe's own. `ConfigError` for others."""
    asked = str(trainer.precision)
    if asked not in _AMP:
        raise ConfigError(
            f"The Trainer asks for the precision {asked}. raymine keeps parameters in float32, and computes matrix "
            "products in another type where it is asked to.",
            hint="Use Trainer(precision=...) with '32-true', '16-mixed' or 'bf16-mixed'.",
        )
    return _AMP[asked]


def require_strategy(strategy: Strategy) -> None:
    """`ConfigError` unless the strategy is a single device, or processes that hold the same parameters."""
    # DeepSpeed and XLA extend the strategy of DDP.
    ddp = isinstance(strategy, DDPStrategy) and not isinstance(strategy, DeepSpeedStrategy | XLAStrategy)
    if not ddp and not isinstance(strategy, SingleDeviceStrategy):
        raise ConfigError(
            f"raymine.lightning trains on one device, or on several that each hold the whole model. "
            f"{type(strategy).__name__} does neither.",
            hint="Use Trainer(devices=1), or Trainer(devices=2, strategy=...) with 'ddp', 'ddp_spawn' or "
            "'ddp_notebook'.",
        )


def ranks_of(trainer: Trainer) -> Ranks:
    """The processes of the Trainer as ranks of a run, over the process group that Lightning has made."""
    strategy = trainer.strategy
    if trainer.world_size == 1 or not isinstance(strategy, DDPStrategy):
        return SOLO
    place = Place(trainer.global_rank, trainer.world_size, strategy.local_rank, strategy.num_processes)
    # Other ranks wait in a step while rank 0 writes a checkpoint or a log, so this is as long as Lightning waits.
    limit = strategy._timeout
    return among(place, strategy.root_device, SETUP_SECONDS if limit is None else limit.total_seconds())


def hands_back(strategy: Strategy) -> bool:
    """Whether the strategy trains in processes that end with the fit, which sends a state dict to the caller."""
    return isinstance(strategy.launcher, _MultiProcessingLauncher)


class _OwnPrecision(Precision):
    """Leaves casting and scaling to raymine, under the name of the precision that the Trainer has."""

    def __init__(self, precision: str) -> None:
        self.precision = precision  # type: ignore[assignment]


@contextlib.contextmanager
def in_charge(trainer: Trainer) -> Iterator[None]:
    """Within the block raymine alone sets threads, casts, scales and sums gradients. Begin it in the hook `setup`."""
    strategy = trainer.strategy
    plugin = strategy.precision_plugin
    with contextlib.ExitStack() as stack:
        if strategy.root_device.type == "cpu":
            # Lightning divides the cores among its processes. The first kernel of Numba would take all of them.
            stack.enter_context(using_threads(torch.get_num_threads()))
        if isinstance(plugin, MixedPrecision):
            strategy.precision_plugin = _OwnPrecision(plugin.precision)
            stack.callback(setattr, strategy, "precision_plugin", plugin)
        if isinstance(strategy, DDPStrategy):
            strategy.configure_ddp = _leave_unwrapped  # type: ignore[method-assign]
            stack.callback(strategy.__dict__.pop, "configure_ddp")
        yield


def _leave_unwrapped() -> None:
    """In place of `DDPStrategy.configure_ddp`, which wraps the module."""


@contextlib.contextmanager
def remedies() -> Iterator[None]:
    """Say how a fit continues after a lost process, in the words of Lightning."""
    try:
        yield
    except PeerLostError as error:
        hint = "Continue from a checkpoint, with any number of processes: trainer.fit(module, data, ckpt_path=...)."
        raise PeerLostError(error.message, hint=hint) from error
