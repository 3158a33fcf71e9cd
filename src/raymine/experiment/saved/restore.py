"""Restore a training state and a loop from a checkpoint, and refuse one that was saved after training had diverged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raymine import checkpoint
from raymine.checkpoint import Checkpoint
from raymine.errors import CheckpointError, ConfigError, option
from raymine.quantities import listing

from .loopstate import LoopState

if TYPE_CHECKING:
    from raymine.step import TrainState


def restore_state(state: TrainState, found: Checkpoint) -> None:
    """Copy a checkpoint into `state`. `CheckpointError` if it belongs to another model or holds NaN or infinity."""
    state.restore(found.tensors, found.scalars)
    broken = state.non_finite()
    if broken:
        raise CheckpointError(
            f"{found.path} holds values that are not finite, in {listing(broken)}: training had diverged when it was "
            "saved.",
            hint=_way_on(found),
        )


def restore_loop(found: Checkpoint) -> LoopState:
    """The state of the loop that a checkpoint holds; `CheckpointError` if it is missing or does not fit."""
    try:
        return LoopState.from_json(found.meta.get("loop"))
    except ConfigError as error:
        raise CheckpointError(f"{found.path} is damaged: {error.message}") from error


def _way_on(found: Checkpoint) -> str:
    folder = found.path.parent
    earlier = [step for step in checkpoint.list_steps(folder) if step < found.step]
    if not earlier:
        return f"There is no earlier checkpoint; train again with another {option('out')}."
    return f"To use that of step {earlier[-1]} instead, move {found.path.stem}.json out of {folder}."
