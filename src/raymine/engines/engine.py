"""What advances a training state and shows it."""

from __future__ import annotations

from typing import Protocol

from raymine.contracts import Renderer, StepReport


class Engine(Protocol):
    """Trains a state in place. `name` and `reason` are for people: what runs, and why."""

    name: str
    reason: str

    def advance(self, steps: int) -> list[StepReport]:
        """Train at least one and at most `steps` steps; a report of each."""
        ...

    def renderer(self) -> Renderer:
        """A renderer of what has been learnt by the time it is called."""
        ...

    def warm_up(self) -> None:
        """Compile or load every kernel that training needs. The state is of no use afterwards."""
        ...
