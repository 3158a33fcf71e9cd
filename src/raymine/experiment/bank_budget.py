"""How much main memory the images of a run may take, and the sentence that says so. It has no effect on the result."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raymine.contracts import Bounds
from raymine.engines import draws_on_device
from raymine.errors import option
from raymine.quantities import size
from raymine.scenes.bank import ImageBank
from raymine.scenes.bank.pack import DEFAULT_BUDGET, reading_budget
from raymine.step import TrainConfig

from .memory import estimate_bytes


@dataclass(frozen=True)
class BankBudget:
    """bytes: main memory that the images may take. stated: whether the user has said so; else it follows from what is
    free."""

    bytes: int = DEFAULT_BUDGET
    stated: bool = False


def choose_bank_budget(stated: int | None, train: TrainConfig, bounds: Bounds, device: torch.device) -> BankBudget:
    """The budget that the user has stated, else half of the memory that is free beside what training needs."""
    if stated is not None:
        return BankBudget(stated, stated=True)
    return BankBudget(reading_budget(estimate_bytes(train, bounds, "cpu") if device.type == "cpu" else 0))


def falls_short(bank: ImageBank, train: TrainConfig, device: torch.device) -> bool:
    """Whether a step reads its pixels from the file, because the images do not fit into the budget."""
    return not bank.mapped and not draws_on_device(train, device.type)


def bank_sentence(bank: ImageBank, budget: BankBudget) -> str:
    """Where the pixels of a run come from that the host draws."""
    flag = option("bank_budget")
    of = flag if budget.stated else f"half of what is free; {flag} sets another limit"
    if bank.mapped:
        return f"Images: {size(bank.nbytes)}, within the {size(budget.bytes)} of memory that they may take ({of})."
    return (
        f"Images: {size(bank.nbytes)}, more than the {size(budget.bytes)} of memory that they may take ({of}). Each "
        "pixel is read from the cache on disk, which is slower."
    )
