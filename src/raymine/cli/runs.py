"""`raymine runs`: list run folders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from raymine.errors import RunError
from raymine.files import obstacle

from . import output

_ROOT = Path("runs")


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder: scene, recipe, step, status, PSNR, start and training time."""

    root: Path = _ROOT
    """Folder that holds the run folders."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.rundir import list_runs

        self._require_folder_of_runs()
        found = list_runs(self.root)
        if self.json:
            output.emit_json({"root": str(self.root), "runs": [asdict(summary) for summary in found]})
            return 0
        if not found:
            output.say(f"No runs in {self.root}. `raymine demo` or `raymine train SCENE` makes one.")
            return 0
        # Show the column of held-out views only if a run has such views.
        held_out = any(summary.held_out_psnr is not None for summary in found)
        scores = ("train\nPSNR", "test\nPSNR", *(("held-out\nPSNR",) if held_out else ()))
        columns = ("run", "scene", "recipe", "status", "step", *scores, "started\n(UTC)", "trained")
        rows = [
            (
                str(summary.path),
                Path(summary.scene).name,
                summary.recipe,
                summary.status,
                str(summary.step),
                output.number(summary.train_psnr),
                output.number(summary.test_psnr),
                *((output.number(summary.held_out_psnr),) if held_out else ()),
                summary.started[:16].replace("T", " "),
                output.duration(summary.elapsed),
            )
            for summary in found
        ]
        output.results().print(output.table("", columns, rows, right=("step", *scores, "trained")))
        for summary in found:
            if summary.problem:
                output.warn(f"{summary.path}: {summary.problem}")
        return 0

    def _require_folder_of_runs(self) -> None:
        """Raise `RunError` if --root is no folder, or a run itself. The folder that is not named may be missing."""
        from raymine.rundir.folder import is_run

        fault = obstacle(self.root, folder=True)
        if fault is None and not self.root.exists() and self.root != _ROOT:
            fault = "does not exist"
        if fault is not None:
            raise RunError(f"--root {self.root} {fault}.", hint="Give the folder that holds the run folders.")
        if is_run(self.root):
            parent = self.root.absolute().parent
            raise RunError(f"--root {self.root} is a run, not a folder of runs.", hint=f"List it with --root {parent}")
