"""`raymine view`: look at a trained run in a browser."""

from __future__ import annotations

from dataclasses import dataclass

from .. import output
from .serving import Serving


@dataclass(frozen=True, kw_only=True)
class View(Serving):
    """Look at a trained run in a browser: fly through it, show cameras and depth, make a camera path."""

    port: int = 8080

    def execute(self) -> int:
        """Exit code 0 after --seconds or Ctrl-C."""
        from raymine.viewer import ViewServer, watch_run

        place, loaded = self.place(), self.load()

        def ready(server: ViewServer) -> None:
            self.tell(server, loaded.step, "Open this address in a browser. Ctrl-C ends the viewer.")

        try:
            watch_run(loaded, place, seconds=self.seconds, started=ready)
        except KeyboardInterrupt:
            output.say("Stopped.")
        return 0
