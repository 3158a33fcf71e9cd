"""`raymine report`: one HTML file about one run or several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from .. import output
from ..imports import find_own_modules


@dataclass(frozen=True)
class Report:
    """Write one HTML file about a run, or about several beside each other. It opens offline in any browser."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folder; several are compared."""
    out: Path | None = None
    """HTML file. `report.html` in the run folder if not given, or in the working folder for several runs."""
    no_render: bool = False
    """Do not open the models: no pictures of hard samples, and no test views of a run that was not evaluated."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to compute and render pictures on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.report import write_report

        find_own_modules(self.allow)
        report = write_report(self.runs, self.out, render=not self.no_render, device=self.device, allow=self.allow)
        for note in report.notes:
            output.warn(note)
        if self.json:
            found = {"report": report.path, "runs": list(report.runs), "views": report.views, "bytes": report.bytes}
            output.emit_json({**found, "notes": list(report.notes)})
        else:
            output.results().print(str(report.path), markup=False, soft_wrap=True)
            output.say(f"{output.size(report.bytes)}, {report.views} test views. Open it in a browser.")
        return 0
