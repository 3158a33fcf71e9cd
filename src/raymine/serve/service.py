"""The HTTP service: routes, checks and answers."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from raymine import pictures
from raymine._version import __version__
from raymine.errors import ConfigError
from raymine.experiment import LoadedRun
from raymine.export import render_view
from raymine.files import UnreadableFile, parse_json
from raymine.listening import Place, is_stranger, listen, url_of

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
_CONNECTIONS = 512
"""Connections at a time; further ones wait in the socket's queue."""

_GRACE = 10.0
"""Seconds for requests that wait when the service is stopped."""

_PIECE = 1 << 15
"""Rays between two looks at the time limit."""

_LOG = logging.getLogger(__name__)


class Refused(Exception):
    """A request that is answered with an error. retry: seconds after which it may be sent again."""

    def __init__(
        self,
        code: int,
        error: str,
        hint: str = "",
        *,
        retry: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.code, self.error, self.hint, self.retry, self.headers = code, error, hint, retry, headers or {}


class RenderService:
    """Serves views of a run, on threads of its own, until `stop`. Use it in a `with` block."""

    def __init__(self, loaded: LoadedRun, place: Place, limits: Limits | None = None) -> None:
        self.place, self.limits, self.metrics = place, limits or Limits(), Metrics()
        self.scene, self._loaded, self._began = loaded.scene, loaded, time.monotonic()
        self._door = listen(place)
        self.url = url_of(place, self._door)
        self.queue = RenderQueue(self._draw, self.limits.waiting, self.limits.seconds)
        self.stopping = False
        self._server = _Server(self._door, self)
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
        cpu = self._loaded.device.type == "cpu"
        view = render_view(
            self._loaded.renderer,
            request.camera,
            request.pose,
            self.scene.bounds,
            background=request.background,
            time=request.time,
            device=self._loaded.device,
            piece=_PIECE if cpu else 1 << 20,
            unwanted=unwanted,
        )
        if request.kind == "depth":
            return pictures.depth_picture(view.depth, view.opacity)
        return pictures.opacity_picture(view.opacity) if request.kind == "opacity" else pictures.to_uint8(view.colour)


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to `_CONNECTIONS` of them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, door: socket.socket, service: RenderService) -> None:
        self.address_family = door.family
        super().__init__(door.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.service = door, service
        self._room = threading.BoundedSemaphore(_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away. Errors of our own are answered, and logged, in the handler.
        _LOG.debug("connection of %s ended early", client_address, exc_info=True)

    def wait_for_handlers(self, seconds: float) -> None:
        """Wait until every answer is sent, for at most `seconds`."""
        end = time.monotonic() + seconds
        for _ in range(_CONNECTIONS):
            if not self._room.acquire(timeout=max(0.0, end - time.monotonic())):
                return


class _Handler(BaseHTTPRequestHandler):
    """One connection. Every answer but a picture and /metrics is JSON; an error has the fields `error` and `hint`."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = f"raymine/{__version__}"
    sys_version = ""
    timeout = 15.0
    _sent = False

    def __getattr__(self, name: str) -> Any:
        # The base class calls do_GET, do_POST, and so on, and answers 501 to methods without one.
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        service, self._sent = self.server.service, False
        path = urlsplit(self.path).path if self.path.isprintable() else ""
        known = path if path in _ROUTES else "other"
        code = 500
        try:
            if service.stopping:
                self.close_connection = True
            self._check(path)
            body = self._body() if self.command == "POST" else b""
            code = self._route(path, body)
        except Refused as refused:
            code = refused.code
            self._refuse(refused)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
            code = 499
        except Exception:
            _LOG.exception("a request could not be answered")
            self._refuse(Refused(500, "This is a bug in raymine; its log has the details."))
        finally:
            service.metrics.answered(known, code)

    def _check(self, path: str) -> None:
        place = self.server.service.place
        if is_stranger(place, self.headers.get("Host", ""), self.headers.get("Origin")):
            raise Refused(403, "Requests of other sites, or under another name, are not answered.")
        if path != "/health" and place.token is not None:
            scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
            if scheme.lower() != "bearer" or not place.fits(given.strip()):
                hint = "Send the header `Authorization: Bearer TOKEN`."
                raise Refused(401, "The token is missing or wrong.", hint, headers={"WWW-Authenticate": "Bearer"})
        methods = _ROUTES.get(path)
        if methods is None:
            raise Refused(404, f"There is no {path[:80]}.", f"There is {', '.join(_ROUTES)}.")
        if self.command not in methods:
            raise Refused(405, f"{path} takes {' and '.join(methods)}.", headers={"Allow": ", ".join(methods)})

    def _body(self) -> bytes:
        most = self.server.service.limits.body
        kind = self.headers.get_content_type() if self.headers.get("Content-Type") else ""
        if kind != "application/json":
            raise Refused(415, "The body must be JSON, with the header `Content-Type: application/json`.")
        text = self.headers.get("Content-Length", "")
        if not (text.isascii() and text.isdigit()) or self.headers.get("Transfer-Encoding"):
            raise Refused(411, "The request must have a Content-Length.")
        if len(text) > 12 or int(text) > most:
            raise Refused(413, f"The body may have up to {most} bytes.")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise ConnectionResetError("the body ended early")
        return body

    def _route(self, path: str, body: bytes) -> int:
        service = self.server.service
        if path == "/render":
            picture, kind = service.picture(body)
            return self._send(200, picture, f"image/{kind}")
        if path == "/metrics":
            text = service.metrics.text(service.queue.length, service.queue.busy)
            return self._send(200, text.encode(), "text/plain; version=0.0.4")
        return self._send_json(200, service.health() if path == "/health" else service.description())

    def _refuse(self, refused: Refused) -> None:
        # A body that was not read would be taken for the next request.
        self.close_connection = True
        headers = dict(refused.headers)
        if refused.retry is not None:
            headers["Retry-After"] = str(math.ceil(min(refused.retry, 3600.0)))
        hint = {"hint": refused.hint} if refused.hint else {}
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._send_json(refused.code, {"error": refused.error, **hint}, headers)

    def _send_json(self, code: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> int:
        return self._send(code, (json.dumps(document) + "\n").encode(), "application/json", headers)

    def _send(self, code: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> int:
        if self._sent:
            return code
        self._sent = True
        self.send_response(code)
        fixed = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        fixed["X-Content-Type-Options"] = "nosniff"
        if self.close_connection:
            fixed["Connection"] = "close"
        for name, value in {**fixed, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return code

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called by the base class for what is not HTTP. A client's mistake is never answered with a 5xx."""
        self._sent = False
        # Without a version the base class would leave out the status line.
        self.request_version = "HTTP/1.1"
        self.command = getattr(self, "command", None) or "GET"
        self._refuse(Refused(code if 400 <= code < 500 else 400, message or "The request is not HTTP/1.1."))

    def log_message(self, format: str, *args: Any) -> None:
        _LOG.debug(format, *args)
