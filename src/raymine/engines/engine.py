"""The protocol of engines."""

from __future__ import annotations

from typing import Protocol

from raymine.contracts import Renderer, StepReport


class Engine(Protocol):
    """Trains a state in place.

    name: the engine. reason: why this engine was chosen. Both are shown to the user.
    """

    name: str
    reason: str

    @property
    def waited(self) -> float:
        """Seconds in which the device had nothing to do because images were late; those that `gather` takes aside."""
        ...

    def advance(self, steps: int) -> list[StepReport]:
        """Train at least one and at most `steps` steps. Returns one report per step."""
        ...

    def renderer(self) -> Renderer:
        """A renderer of the field as it is at the time of this call."""
        ...

    def warm_up(self) -> None:
        """Compile or load every kernel that training needs. Afterwards the state is as it was."""
        ...
