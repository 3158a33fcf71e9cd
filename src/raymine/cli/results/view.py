"""`raymine view`: look at a trained run in a browser."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from .. import output
from ..imports import find_own_modules

if TYPE_CHECKING:
    from raymine.experiment import LoadedRun
    from raymine.viewer import ViewServer


@dataclass(frozen=True)
class View:
    """Look at a trained run in a browser: fly through it, show cameras and depth, make a camera path."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    host: str = "127.0.0.1"
    """Where the server listens. The default is for this machine alone; others need a token, which is printed."""
    port: int = 8080
    """Port; 0 is any free one."""
    token: str | None = None
    """Ask clients for this token, also on this machine."""
    seconds: float | None = None
    """Stop after this many seconds; Ctrl-C stops it too."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The checkpoint to show; `best` is selected by the views of `raymine train --hold-out`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout when the server is ready."""

    def execute(self) -> int:
        """Exit code 0 after --seconds or Ctrl-C."""
        from raymine.config import require_seconds
        from raymine.experiment import load_run
        from raymine.listening import Place
        from raymine.viewer import watch_run

        if self.seconds is not None:
            require_seconds(self.seconds, "seconds")
        place = Place(self.host, self.port, self.token)
        find_own_modules(self.allow)
        loaded = load_run(self.run, which=self.checkpoint, device=self.device, allow=self.allow)
        for note in loaded.notes:
            output.warn(note)
        if place.warning:
            output.warn(place.warning)
        try:
            watch_run(loaded, place, seconds=self.seconds, started=lambda server: self._ready(server, loaded))
        except KeyboardInterrupt:
            output.say("Stopped.")
        return 0

    def _ready(self, server: ViewServer, loaded: LoadedRun) -> None:
        if self.json:
            output.emit_json({"run": self.run, "step": loaded.step, "url": server.url, "token": server.place.token})
        else:
            output.results().print(server.url, markup=False, soft_wrap=True)
            output.say("Open this address in a browser. Ctrl-C ends the viewer.")
        sys.stdout.flush()
