"""`raymine verify`: prove that a model gives the images that its evaluation gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from .. import output
from ..imports import find_own_modules

if TYPE_CHECKING:
    from raymine.contracts import Renderer


@dataclass(frozen=True)
class Verify:
    """Render the evaluated views of a run again, from the checkpoint that was evaluated or from exported models, and
    compare pixels."""

    run: tyro.conf.Positional[Path]
    """Run folder; it must have been evaluated with pictures."""
    model: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """An exported snapshot (.safetensors) or ONNX file (.onnx) of the run to render instead of its checkpoint.
    Repeat it for more. ONNX is evaluated on the CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        """Exit code 0 if the images are the same, else 1."""
        from raymine.experiment.finished.verify import LEVELS, exported_renderer, in_halves, load_evaluated, verify_run

        find_own_modules(self.allow)
        loaded = load_evaluated(self.run, self.device, allow=self.allow)
        # Files that cannot be rendered are refused before any work.
        renderers: dict[str, Renderer | None] = {str(model): exported_renderer(model, loaded) for model in self.model}
        checked = []
        if not renderers or in_halves(loaded):
            renderers = {f"the checkpoint of step {loaded.step}": None, **renderers}
        for what, renderer in renderers.items():
            with output.progress_bar("Comparing views") as progress:
                found = verify_run(loaded, renderer, progress)
            checked.append((what, found))
            far = f"pixels differ by up to {found.largest} of 255 levels, {found.mean:.4f} on average"
            those = "images of the checkpoint in float32" if found.exact else "images of the evaluation"
            if found.same:
                output.say(f"Verified: {what} gives the {those}; {found.views} views, {far}.")
            else:
                output.say(f"error: {what} does not give the {those}: {far}; {LEVELS} is allowed.")
        worst = max((found for _, found in checked), key=lambda found: (found.largest, found.mean))
        if self.json:
            models = [{"model": what, "same": found.same, **asdict(found)} for what, found in checked]
            about = {"run": str(self.run), "step": loaded.step, "same": worst.same, **asdict(worst)}
            output.emit_json({**about, **({"models": models} if self.model else {})})
        return 0 if worst.same else 1
