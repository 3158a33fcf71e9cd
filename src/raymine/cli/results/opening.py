"""Opening the run that a command is about, with something to see meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .. import output
from ..beside_imports import open_cuda, read_checkpoint
from ..imports import find_own_modules

if TYPE_CHECKING:
    from raymine.experiment import LoadedRun


def open_run(
    run: Path, *, checkpoint: Literal["latest", "best"] = "latest", device: str = "auto", allow: tuple[str, ...] = ()
) -> LoadedRun:
    """A checkpoint of a run, and what is to be said about it on stderr. Importing torch and loading take seconds."""
    with output.waiting(f"Opening {run}"):
        open_cuda(device)
        if checkpoint == "latest":
            read_checkpoint(run)
        find_own_modules(allow)
        from raymine.experiment import load_run

        loaded = load_run(run, which=checkpoint, device=device, allow=allow)
    for note in loaded.notes:
        output.warn(note)
    return loaded
