"""The HTTP service: its routes, and what it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from raymine._version import __version__
from raymine.errors import ConfigError
from raymine.experiment import LoadedRun
from raymine.export import render_view
from raymine.files import UnreadableFile, parse_json
from raymine.http_head import Head
from raymine.listening import Place, is_stranger, listen, url_of

from .connection import Answer, Refused, Server, json_body
from .jobs import QueueFull, RenderQueue, TooSlow
from .limits import Limits
from .metrics import Metrics
from .openapi import describe
from .request import ViewRequest, parse_request

_ROUTES = {
    "/render": ("POST",),
    "/health": ("GET", "HEAD"),
    "/metrics": ("GET", "HEAD"),
    "/openapi.json": ("GET", "HEAD"),
}

_GRACE = 10.0
"""Seconds for requests that wait when the service is stopped."""


class RenderService:
    """Serves views of a run, on threads of its own, until `stop`. Use it in a `with` block."""

    def __init__(self, loaded: LoadedRun, place: Place, limits: Limits | None = None) -> None:
        self.place, self.limits, self.metrics = place, limits or Limits(), Metrics()
        self.scene, self._loaded, self._began = loaded.scene, loaded, time.monotonic()
        # Made here, not by the first request: a thread of its own has another current GPU.
        self._renderer = loaded.renderer
        self._door = listen(place)
        self.url = url_of(place, self._door)
        self.queue = RenderQueue(self._draw, self.limits.waiting, self.limits.seconds)
        self.stopping = False
        self._server = Server(self._door, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, within some seconds, then close all connections."""
        if self.stopping:
            return
        self.stopping = True
        self.queue.close(_GRACE)
        self._server.shutdown()
        self._server.wait_for_handlers(5.0)
        self._server.server_close()
        self._thread.join(5.0)

    def __enter__(self) -> RenderService:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def health(self) -> dict[str, Any]:
        return {
            "status": "stopping" if self.stopping else "ok",
            "raymine": __version__,
            "run": self._loaded.run.path.name,
            "step": self._loaded.step,
            "device": str(self._loaded.device),
            "waiting": self.queue.length,
            "seconds": round(time.monotonic() - self._began, 1),
        }

    def description(self) -> dict[str, Any]:
        return describe(self.scene, self.limits, token=self.place.token is not None)

    @property
    def most_body(self) -> int:
        return self.limits.body

    def admit(self, head: Head) -> None:
        """Raise `Refused` for strangers, without the token, and for what no route takes."""
        place, path = self.place, head.path
        if is_stranger(place, head.headers.get("host", ""), head.headers.get("origin")):
            raise Refused(403, "Requests of other sites, or under another name, are not answered.")
        if path != "/health" and place.token is not None:
            scheme, _, given = head.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not place.fits(given.strip()):
                hint = "Send the header `Authorization: Bearer TOKEN`."
                raise Refused(401, "The token is missing or wrong.", hint, headers={"WWW-Authenticate": "Bearer"})
        methods = _ROUTES.get(path)
        if methods is None:
            raise Refused(404, f"There is no {path[:80]}.", f"There is {', '.join(_ROUTES)}.")
        if head.method not in methods:
            raise Refused(405, f"{path} takes {' and '.join(methods)}.", headers={"Allow": ", ".join(methods)})
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if head.method == "POST" and kind != "application/json":
            raise Refused(415, "The body must be JSON, with the header `Content-Type: application/json`.")

    def answer(self, head: Head, body: bytes) -> Answer:
        """The answer of a route; or `Refused`."""
        if head.path == "/render":
            picture, kind = self.picture(body)
            return Answer(200, picture, f"image/{kind}")
        if head.path == "/metrics":
            text = self.metrics.text(self.queue.length, self.queue.busy)
            return Answer(200, text.encode(), "text/plain; version=0.0.4")
        return Answer(200, json_body(self.health() if head.path == "/health" else self.description()))

    def answered(self, path: str, code: int) -> None:
        self.metrics.answered(path if path in _ROUTES else "other", code)

    def picture(self, body: bytes) -> tuple[bytes, str]:
        """The answer to a request for a view, and its format. `Refused` if there is none."""
        if self.stopping:
            raise Refused(503, "The service is stopping.", retry=5.0)
        try:
            request = parse_request(parse_json(body), self.scene, self.limits.pixels)
        except UnreadableFile as error:
            raise Refused(400, f"The body {error.what}") from error
        except ConfigError as error:
            raise Refused(422, error.message, error.hint) from error
        begin = time.monotonic()
        try:
            made = self.queue.render(request)
        except QueueFull as full:
            code = 503 if self.stopping else 429
            raise Refused(code, "Too many requests wait already.", "Try again later.", retry=full.seconds) from full
        except TooSlow as slow:
            limit = f"{self.limits.seconds:g} s"
            if slow.started and not self.stopping:
                hint = "Ask for a smaller picture."
                raise Refused(422, f"The picture took longer than the limit of {limit}.", hint) from slow
            code = 503 if self.stopping else 429
            raise Refused(code, f"The turn of this request did not come within {limit}.", retry=slow.seconds) from slow
        self.metrics.rendered(time.monotonic() - begin, request.camera.width * request.camera.height)
        return made, request.format

    def _draw(self, request: ViewRequest, unwanted: Callable[[], bool]) -> np.ndarray:
        view = render_view(
            self._renderer,
            request.camera,
            request.pose,
            self.scene.bounds,
            background=request.background,
            time=request.time,
            device=self._loaded.device,
            unwanted=unwanted,
        )
        return view.picture(request.kind)
