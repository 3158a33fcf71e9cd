"""`raymine check`: find all problems of a scene in one pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import tyro

from . import output

if TYPE_CHECKING:
    from raymine.scenes import Problem


@dataclass(frozen=True)
class Check:
    """Check a scene: list all problems, each with its file and its fix. Changes nothing."""

    scene: tyro.conf.Positional[str]
    """Scene folder, or `builtin`."""
    downscale: int = 1
    """Check as if the size of images were divided by this."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        """Exit code 0 if there is no error (there may be warnings), else 3."""
        from raymine.scenes import check_scene

        with output.progress_bar("Checking images") as progress:
            problems = check_scene(self.scene, self.downscale, progress=progress)
        errors = sum(problem.severity == "error" for problem in problems)
        if self.json:
            output.emit_json(self._document(problems, errors))
        else:
            self._print(problems, errors)
        return 3 if errors else 0

    def _document(self, problems: list[Problem], errors: int) -> dict[str, object]:
        rows = [asdict(p) for p in problems]
        return {
            "scene": self.scene,
            "ok": errors == 0,
            "errors": errors,
            "warnings": len(problems) - errors,
            "problems": rows,
        }

    def _print(self, problems: list[Problem], errors: int) -> None:
        console = output.results()
        if problems:
            rows = [(p.severity, p.file, p.what, p.fix) for p in problems]
            console.print(output.table("", ("severity", "file", "what is wrong", "what to do"), rows))
        found = f"{_count(errors, 'error')}, {_count(len(problems) - errors, 'warning')}."
        verdict = "Training needs the errors fixed." if errors else "It can be trained."
        console.print(f"{self.scene}: {found} {verdict}", markup=False, soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
