"""`raymine runs`: the index of run folders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from . import output


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder: scene, recipe, step, status, PSNR, start and training time."""

    root: Path = Path("runs")
    """Folder that holds the run folders."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.rundir import list_runs

        found = list_runs(self.root)
        if self.json:
            output.emit_json({"root": str(self.root), "runs": [asdict(summary) for summary in found]})
            return 0
        if not found:
            output.say(f"No runs in {self.root}. `raymine demo` or `raymine train SCENE` makes one.")
            return 0
        columns = ("run", "scene", "recipe", "status", "step", "PSNR", "started (UTC)", "trained")
        rows = [
            (
                str(summary.path),
                Path(summary.scene).name,
                summary.recipe,
                summary.status,
                str(summary.step),
                output.number(summary.psnr),
                summary.started[:19].replace("T", " "),
                output.duration(summary.duration),
            )
            for summary in found
        ]
        output.results().print(output.table("", columns, rows, right=("step", "PSNR", "trained")))
        for summary in found:
            if summary.problem:
                output.warn(f"{summary.path}: {summary.problem}")
        return 0
