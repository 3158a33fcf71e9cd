"""Training with a PyTorch Lightning `Trainer`: the engines and the state of `raymine.train` in a LightningModule.

    data = RaymineData("builtin", downscale=4)
    Trainer(max_steps=500).fit(RaymineModule(data, recipe="ngp"), data)

A batch is a step number: which rays a step trains on is a function of the seed and the step, so there is no loader of
pixels. The model is a `TrainState`, which is not a submodule: Lightning moves and converts submodules, and engines keep
views of the parameters. Checkpoints hold the state under the key "raymine". docs/lightning.md says when to use this.
"""

from __future__ import annotations

from raymine.errors import MissingExtraError

try:
    import pytorch_lightning  # noqa: F401
except ImportError as error:
    raise MissingExtraError("pytorch-lightning", "lightning", "`raymine.lightning`") from error

from .data import RaymineData as RaymineData
from .module import RaymineModule as RaymineModule

__all__ = ["RaymineData", "RaymineModule"]
