"""`nerfacc.estimators.base`: the base class of estimators."""

from __future__ import annotations

from typing import Any

import torch


class AbstractEstimator(torch.nn.Module):
    """Places samples along rays. Subclasses implement `sampling` and, if they are trained, `update_every_n_steps`."""

    _dummy: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_dummy", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        return self._dummy.device

    def sampling(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def update_every_n_steps(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError
