"""Problems of a scene: one record per problem, and the error that is raised for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raymine.errors import SceneError

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One problem. file: relative to the scene if possible. what: the problem. fix: what to do.

    severity: an error prevents training, a warning does not. kind: a stable identifier for scripts. files: all files
    that the problem concerns, if there are several.
    """

    file: str
    what: str
    fix: str
    severity: Severity = "error"
    kind: str = "format"
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}: {self.what} {self.fix}"


def refuse(path: Path, problems: Sequence[Problem]) -> SceneError:
    """The error for a scene that cannot be read: its first problem in full, and how to list the others."""
    errors = [p for p in problems if p.severity == "error"]
    first = errors[0]
    rest = len(errors) - 1
    more = "" if rest == 0 else f" (1 of {rest + 1} errors)"
    return SceneError(
        f"The scene {path} cannot be read{more}. {first.file}: {first.what}",
        hint=f"{first.fix} `raymine check {path}` lists every problem.",
    )
