"""The parts of a training state: how a module, or anything else with tensors, is saved, restored and optimised."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from raymine.contracts import Group, Part, Scalars


class ModulePart:
    """A module as a `contracts.Part`: parameters and persistent buffers are saved under their names in the module.

    What the module itself says comes first: its own `groups`, `scalars` and `restored`, where it has them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def groups(self) -> list[Group]:
        own = getattr(self.module, "groups", None)
        if own is not None:
            return cast("list[Group]", own())
        parameters = dict(self.module.named_parameters())
        return [Group("network", parameters)] if parameters else []

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.module.state_dict(keep_vars=False))

    def scalars(self) -> Scalars:
        own = getattr(self.module, "scalars", None)
        return cast("Scalars", own()) if own is not None else {}

    def restored(self, scalars: Scalars) -> None:
        own = getattr(self.module, "restored", None)
        if own is not None:
            own(scalars)


class TensorsPart:
    """Something that names its tensors and has nothing to optimise or rebuild: the miner, the pixel sampler."""

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def groups(self) -> list[Group]:
        return []

    def tensors(self) -> dict[str, Tensor]:
        own = getattr(self._owner, "tensors", None)
        return cast("dict[str, Tensor]", own()) if own is not None else {}

    def scalars(self) -> Scalars:
        return {}

    def restored(self, scalars: Scalars) -> None:
        return None


def part_of(thing: object) -> Part:
    """`thing` as a part: itself where it is one, a module by its parameters and buffers, else its `tensors`, if any."""
    if isinstance(thing, nn.Module):
        return ModulePart(thing)
    if all(hasattr(thing, name) for name in ("groups", "tensors", "scalars", "restored")):
        return cast("Part", thing)
    return TensorsPart(thing)


def device_of(part: Part) -> torch.device | None:
    """Where the tensors of a part are; None where it has none."""
    return next((value.device for value in part.tensors().values()), None)
