"""Small fits with a Lightning Trainer on the CPU. Tests import Lightning from here: without it they are skipped."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from support.killed_run import TINY

with warnings.catch_warnings():
    # Packages that Lightning imports warn about names of other packages that will end.
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from pytorch_lightning import Callback as Callback
    from pytorch_lightning import Trainer as Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint as ModelCheckpoint
    from pytorch_lightning.loggers import CSVLogger as CSVLogger
    from pytorch_lightning.plugins.precision import MixedPrecision as MixedPrecision
    from pytorch_lightning.strategies import FSDPStrategy as FSDPStrategy

    from raymine.lightning import RaymineData as RaymineData
    from raymine.lightning import RaymineModule as RaymineModule
    from raymine.lightning.trainer import remedies as remedies
    from raymine.lightning.trainer import require_strategy as require_strategy

IGNORED = [
    # Lightning asks torch in a way that torch announces it will end.
    pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning"),
    # A checkpoint holds the state after the step, which is what is wanted.
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    # The model is under a key of its own, not in `state_dict`.
    pytest.mark.filterwarnings("ignore:The state dict in .* contains no parameters"),
    # Tests fit on the CPU, also where there is a GPU.
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    # A resumed fit saves beside the checkpoint that it resumes from.
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
"""Warnings of Lightning that its users see too."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def module_of(data: RaymineData, **options: Any) -> RaymineModule:
    return RaymineModule(data, **{"recipe": "ngp", "overrides": TINY, **options})


def trainer(steps: int, *callbacks: Callback, **options: Any) -> Trainer:
    return Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"logger": False, "enable_checkpointing": bool(callbacks), **options},
    )


def assert_equal_bits(a: Any, b: Any) -> None:
    assert a.scalars() == b.scalars()
    own, other = a.tensors(), b.tensors()
    assert own.keys() == other.keys()
    for name, value in own.items():
        assert torch.equal(value, other[name]), name
