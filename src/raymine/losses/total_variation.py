"""Total variation: a penalty on differences of neighbouring parameters, so that what no ray sees stays smooth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raymine.contracts import HasVariation, ParameterView, Reads
from raymine.errors import ConfigError, require_finite


@dataclass(frozen=True)
class TotalVariation:
    """`weight` times the mean squared difference of neighbouring parameters, as the field defines it.

    The field must be a `contracts.HasVariation`: a field of planes or of voxels.
    """

    reads: ClassVar[Reads] = "parameters"

    weight: float = 1e-4

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the total variation needs a positive `weight`, got {self.weight}.")

    def __call__(self, view: ParameterView) -> Tensor:
        if not isinstance(view.field, HasVariation):
            named = type(view.field).__name__
            raise ConfigError(
                f"`TotalVariation` needs a field with neighbouring parameters, and {named} has none.",
                hint="Use it with a field of planes or of voxels, or leave it out of `loss`.",
            )
        return self.weight * view.field.variation(view.step)
