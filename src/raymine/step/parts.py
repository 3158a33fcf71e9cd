"""Adapters that make modules and other objects parts of a training state (`contracts.Part`)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from raymine.contracts import Group, Part, Scalars
from raymine.errors import ConfigError


class ModulePart:
    """A module as a `contracts.Part`: its parameters and persistent buffers are saved under their own names.

    If the module defines `groups`, `scalars` or `restored`, these are used.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def groups(self) -> list[Group]:
        own = getattr(self.module, "groups", None)
        parameters = dict(self.module.named_parameters())
        if own is None:
            return [Group("network", parameters)] if parameters else []
        groups = cast("list[Group]", own())
        listed = {id(value) for group in groups for value in group.parameters.values()}
        left_out = [name for name, value in parameters.items() if value.requires_grad and id(value) not in listed]
        if left_out:
            raise ConfigError(
                f"the groups of {type(self.module).__name__} leave out {', '.join(left_out)}.",
                hint="Put every parameter into a group, or set `requires_grad` to False where it is not trained.",
            )
        return groups

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
    """An object with a method `tensors` and nothing to optimise, such as the miner, as a `contracts.Part`."""

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
    """`thing` as a part: a module by its parameters and buffers, a part itself, or any object by its `tensors`."""
    if isinstance(thing, nn.Module):
        return ModulePart(thing)
    if all(hasattr(thing, name) for name in ("groups", "tensors", "scalars", "restored")):
        return cast("Part", thing)
    return TensorsPart(thing)
