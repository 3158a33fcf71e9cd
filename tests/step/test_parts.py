"""Parts of a training state: what a module saves, optimises and restores without knowing it is a part."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raymine.contracts import Group
from raymine.errors import ConfigError
from raymine.step.optimiser import Optimiser, OptimiserConfig
from raymine.step.parts import ModulePart, TensorsPart, part_of


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("constant", torch.ones(1), persistent=False)


class Grouped(Module):
    def groups(self) -> list[Group]:
        return [Group("weight", {"layer.weight": self.layer.weight}, rate=0.1)]


def test_module_is_one_group_and_saves_persistent_buffers() -> None:
    part = part_of(Module())
    (group,) = part.groups()
    assert (group.role, sorted(group.parameters), group.sparse) == ("network", ["layer.bias", "layer.weight"], False)
    assert sorted(part.tensors()) == ["layer.bias", "layer.weight", "seen"]
    assert part.scalars() == {}


def test_saved_tensors_alias_the_module() -> None:
    module = Module()
    part_of(module).tensors()["seen"].fill_(7.0)
    assert module.seen.tolist() == [7.0] * 4  # type: ignore[attr-defined]


def test_groups_that_leave_out_a_trained_parameter_are_refused() -> None:
    module = Grouped()
    with pytest.raises(ConfigError, match=r"the groups of Grouped leave out layer\.bias"):
        ModulePart(module).groups()
    module.layer.bias.requires_grad_(False)
    (group,) = ModulePart(module).groups()
    assert group.rate == 0.1


def test_parameter_in_two_parts_is_refused() -> None:
    module = Module()
    with pytest.raises(ConfigError, match=r"two groups, as `a\.layer\.weight` and as `b\.layer\.weight`"):
        Optimiser(OptimiserConfig(), {"a": part_of(module), "b": part_of(module)})


def test_object_without_tensors_is_an_empty_part() -> None:
    part = part_of(object())
    assert isinstance(part, TensorsPart)
    assert (part.groups(), part.tensors(), part.scalars()) == ([], {}, {})


def test_parameters_of_a_block_are_views_and_train_as_single_ones() -> None:
    torch.manual_seed(0)
    single, joined = Module(), Module()
    joined.load_state_dict(single.state_dict())
    config = OptimiserConfig(decay=0.1)
    optimisers = [Optimiser(config, {"field": part_of(each)}) for each in (single, joined)]
    block = optimisers[1].block(("field.layer.weight", "field.layer.bias"))
    assert optimisers[1].block(block.names) is block
    for step in range(3):
        for module, optimiser in zip((single, joined), optimisers, strict=True):
            module.layer(torch.ones(5, 2) * (step + 1)).square().sum().backward()
            optimiser.step(0.1, optimiser.gate(torch.zeros(())))
            optimiser.updates += 1
    assert torch.equal(block.values, torch.cat([single.layer.weight.flatten(), single.layer.bias]))
    for name, value in optimisers[0].tensors().items():
        assert torch.equal(value, optimisers[1].tensors()[name]), name
