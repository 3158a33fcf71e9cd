"""Connections of the HTTP service: requests are read, and answered one after the other, on a thread for each."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, Protocol

from raymine._version import __version__
from raymine.http_head import Head, NotHttp, head_end, parse_head

_CONNECTIONS = 512
"""Connections at a time; further ones wait in the socket's queue."""

_SECONDS = 15.0
"""Within which a head, a body, or an answer must have passed; also how long a connection may be idle."""

_LINGER = 1.0
"""Seconds in which what a refused client still sends is thrown away, so that it comes to read the answer."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What a request gets. kind: the type of the body."""

    code: int
    body: bytes
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


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

    def answer(self) -> Answer:
        """JSON with the fields `error` and `hint`."""
        headers = dict(self.headers)
        if self.retry is not None:
            headers["Retry-After"] = str(math.ceil(min(self.retry, 3600.0)))
        hint = {"hint": self.hint} if self.hint else {}
        return Answer(self.code, json_body({"error": self.error, **hint}), headers=headers)


def json_body(document: dict[str, Any]) -> bytes:
    return (json.dumps(document) + "\n").encode()


class Service(Protocol):
    """What answers the requests, from several threads. most_body: bytes of the longest body.

    After an answer that is an error the connection is closed: of what the client still sends it is not known where the
    next request begins.
    """

    stopping: bool

    @property
    def most_body(self) -> int: ...

    def admit(self, head: Head) -> None:
        """Raise `Refused` for a request that is not answered, whatever its body."""

    def answer(self, head: Head, body: bytes) -> Answer:
        """The answer to a request that was admitted; or `Refused`."""
        ...

    def answered(self, path: str, code: int) -> None:
        """Called before an answer is sent; path is empty for what is not HTTP. 499: the client went away instead."""


class Server(ThreadingTCPServer):
    """A thread for each connection, up to `_CONNECTIONS` of them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, door: socket.socket, service: Service) -> None:
        self.address_family = door.family
        super().__init__(door.getsockname()[:2], _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket, self.service = door, service
        self._room = threading.BoundedSemaphore(_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._room.acquire(timeout=0.1):
            # `shutdown` waits for this thread.
            if self.service.stopping:
                self.shutdown_request(request)
                return
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


class _Incoming:
    """What a client sends. Each part has a time limit as a whole: one byte now and then does not hold a thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._kept = connection, b""

    def head(self) -> Head | None:
        """The next request; None if the client closes instead, or sends none in time. `NotHttp` if it is none."""
        end = time.monotonic() + _SECONDS
        try:
            while (size := head_end(self._kept)) is None:
                self._more(end)
        except (ConnectionError, TimeoutError):
            if self._kept:
                raise
            return None
        found, self._kept = self._kept[:size], self._kept[size:]
        return parse_head(found)

    def body(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = time.monotonic() + _SECONDS
        while len(self._kept) < size:
            self._more(end)
        found, self._kept = self._kept[:size], self._kept[size:]
        return found

    def _more(self, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        data = self._connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the request ended early")
        self._kept += data


class _Connection(BaseRequestHandler):
    server: Server
    request: socket.socket

    def handle(self) -> None:
        incoming = _Incoming(self.request)
        while self._answer_next(incoming):
            pass

    def _answer_next(self, incoming: _Incoming) -> bool:
        """Whether the connection stays open for another request."""
        service, head, stays = self.server.service, None, False
        try:
            head = incoming.head()
            if head is None:
                return False
            service.admit(head)
            answer = service.answer(head, self._body(head, incoming))
            stays = head.newest and "close" not in head.listed("connection") and not service.stopping
        except NotHttp as wrong:
            answer = Refused(wrong.code, str(wrong)).answer()
        except Refused as refused:
            answer = refused.answer()
        except (ConnectionError, TimeoutError):
            service.answered("" if head is None else head.path, 499)
            return False
        except Exception:
            _LOG.exception("a request could not be answered")
            answer = Refused(500, "This is a bug in raymine; its log has the details.").answer()
        service.answered("" if head is None else head.path, answer.code)
        self._send(answer, head, stays)
        if answer.code >= 400:
            self._linger()
        return stays

    def _body(self, head: Head, incoming: _Incoming) -> bytes:
        if head.method != "POST":
            if head.has_body:
                # Left unread, it would be taken for the next request.
                raise Refused(400, f"A request with {head.method} has no body here.")
            return b""
        most = self.server.service.most_body
        if head.length is None:
            raise Refused(411, "The request must have a Content-Length.")
        if head.length > most:
            raise Refused(413, f"The body may have up to {most} bytes.")
        if head.newest and "100-continue" in head.listed("expect"):
            self.request.settimeout(_SECONDS)
            self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return incoming.body(head.length)

    def _linger(self) -> None:
        """Close after what the client still sends: closing at once would make it lose the answer."""
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_WR)
            end = time.monotonic() + _LINGER
            while (left := end - time.monotonic()) > 0:
                self.request.settimeout(left)
                if not self.request.recv(1 << 16):
                    return

    def _send(self, answer: Answer, head: Head | None, stays: bool) -> None:
        headers = {
            "Server": f"raymine/{__version__}",
            "Date": formatdate(usegmt=True),
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **({} if stays else {"Connection": "close"}),
            **answer.headers,
        }
        lines = [f"HTTP/1.1 {answer.code} {HTTPStatus(answer.code).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self.request.settimeout(_SECONDS)
        self.request.sendall(data if head is not None and head.method == "HEAD" else data + answer.body)
