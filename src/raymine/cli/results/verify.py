"""`raymine verify`: prove that a model gives the images that its evaluation gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tyro

from .. import output
from ..imports import find_own_modules


@dataclass(frozen=True)
class Verify:
    """Render the evaluated views of a run again, from its checkpoint or from an exported model, and compare pixels."""

    run: tyro.conf.Positional[Path]
    """Run folder; it must have been evaluated with pictures."""
    model: Path | None = None
    """An exported model of the run to render instead of its checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        """Exit code 0 if the images are the same, else 1."""
        from raymine.experiment import load_run
        from raymine.experiment.finished.verify import LEVELS, exported_renderer, verify_run

        find_own_modules(self.allow)
        loaded = load_run(self.run, device=self.device, allow=self.allow)
        renderer = None if self.model is None else exported_renderer(self.model, loaded)
        with output.progress_bar("Comparing views") as progress:
            found = verify_run(loaded, renderer, progress)
        if self.json:
            output.emit_json({"run": str(self.run), "same": found.same, **asdict(found)})
        what = self.model or f"the checkpoint of step {loaded.step}"
        far = f"pixels differ by up to {found.largest} of 255 levels, {found.mean:.4f} on average"
        if found.same:
            output.say(f"Verified: {what} gives the images of the evaluation; {found.views} views, {far}.")
            return 0
        output.say(f"error: {what} does not give the images of the evaluation: {far}; {LEVELS} is allowed.")
        return 1
