"""`raymine serve`: an HTTP service that renders posed views of a trained run."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from typing import Any

from .. import output
from .serving import Serving


@dataclass(frozen=True, kw_only=True)
class Serve(Serving):
    """Answer HTTP requests for posed views of a trained run (docs/serve.md)."""

    port: int = 8090
    max_pixels: int = 1 << 22
    """Pixels of the largest picture."""
    timeout: float = 30.0
    """Seconds from a request to its answer."""
    queue: int = 256
    """Requests that may wait; further ones are answered with 429."""

    def execute(self) -> int:
        """Exit code 0 when it was stopped, after what waited was answered."""
        from raymine.serve import Limits, RenderService

        place, limits = self.place(), Limits(self.max_pixels, self.timeout, self.queue)
        loaded = self.load()
        stop = threading.Event()
        before = _on_term(stop)
        try:
            with RenderService(loaded, place, limits) as service:
                token = [] if place.token is None else [f"Send the header: Authorization: Bearer {place.token}"]
                how = f"POST {service.url}/render; described by {service.url}/openapi.json. Ctrl-C ends it."
                self.tell(service, loaded.step, *token, how)
                stop.wait(self.seconds)
                output.say("Stopping: answering what waits.")
        except KeyboardInterrupt:
            output.say("Stopped.")
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
        return 0


def _on_term(stop: threading.Event) -> Any:
    """Let SIGTERM set `stop`; returns the handler before, or None outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: stop.set())
