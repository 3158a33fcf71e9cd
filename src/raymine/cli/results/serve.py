"""`raymine serve`: an HTTP service that renders posed views of a trained run."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from .. import output
from ..imports import find_own_modules

if TYPE_CHECKING:
    from raymine.serve import RenderService


@dataclass(frozen=True)
class Serve:
    """Answer HTTP requests for posed views of a trained run (docs/serve.md)."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    host: str = "127.0.0.1"
    """Where the service listens. The default is for this machine alone; others need a token, which is printed."""
    port: int = 8090
    """Port; 0 is any free one."""
    token: str | None = None
    """Ask for this token (`Authorization: Bearer TOKEN`), also on this machine."""
    max_pixels: int = 1 << 22
    """Pixels of the largest picture."""
    timeout: float = 30.0
    """Seconds from a request to its answer."""
    queue: int = 256
    """Requests that may wait; further ones are answered with 429."""
    seconds: float | None = None
    """Stop after this many seconds; Ctrl-C and SIGTERM stop it too."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The checkpoint to render; `best` is selected by the views of `raymine train --hold-out`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout when the service is ready."""

    def execute(self) -> int:
        """Exit code 0 when it was stopped, after what waited was answered."""
        from raymine.config import require_seconds
        from raymine.experiment import load_run
        from raymine.listening import Place
        from raymine.serve import Limits, RenderService

        if self.seconds is not None:
            require_seconds(self.seconds, "seconds")
        place, limits = Place(self.host, self.port, self.token), Limits(self.max_pixels, self.timeout, self.queue)
        find_own_modules(self.allow)
        loaded = load_run(self.run, which=self.checkpoint, device=self.device, allow=self.allow)
        for note in loaded.notes:
            output.warn(note)
        if place.warning:
            output.warn(place.warning)
        stop = threading.Event()
        before = _on_term(stop)
        try:
            with RenderService(loaded, place, limits) as service:
                self._ready(service, loaded.step)
                stop.wait(self.seconds)
                output.say("Stopping: answering what waits.")
        except KeyboardInterrupt:
            output.say("Stopped.")
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
        return 0

    def _ready(self, service: RenderService, step: int) -> None:
        if self.json:
            output.emit_json({"run": self.run, "step": step, "url": service.url, "token": service.place.token})
        else:
            output.results().print(service.url, markup=False, soft_wrap=True)
            if service.place.token is not None:
                output.say(f"Token: {service.place.token}")
            output.say(f"POST {service.url}/render; described by {service.url}/openapi.json. Ctrl-C ends it.")
        sys.stdout.flush()


def _on_term(stop: threading.Event) -> Any:
    """Let SIGTERM set `stop`; returns the handler before, or None outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, lambda *_: stop.set())
