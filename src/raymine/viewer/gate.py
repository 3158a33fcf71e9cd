"""The door of the viewer: a small proxy that checks where a connection comes from and whether it has the token.

viser has no tokens. So it listens on a loopback port of its own choice, and this proxy listens where the user wants. A
browser sends the token once, in the address, and gets a cookie for the rest. Connections of pages from other sites, and
names that were pointed at this machine from outside, are refused, also where no token is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from raymine.listening import Place, is_stranger

_COOKIE = "raymine_view"
_HEADER, _SECONDS = 1 << 16, 10.0
"""The longest header, and how long a client may take to send it."""


@dataclass(frozen=True)
class Request:
    """The first line and the headers of a request; names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @staticmethod
    def parse(head: bytes) -> Request | None:
        """None if it is not HTTP."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return None
        pairs = (line.partition(":") for line in lines[1:] if line)
        return Request(words[0], words[1], {name.strip().lower(): value.strip() for name, _, value in pairs})


def answer_to(request: Request, place: Place) -> bytes | None:
    """The answer to a request that must not pass, or that brings the token; None if it may pass."""
    if is_stranger(place, request.headers.get("host", ""), request.headers.get("origin")):
        return _answer("403 Forbidden", "Open this viewer by the address that raymine has printed, not from elsewhere.")
    if place.token is None or place.fits(_cookie(request)):
        return None
    url = urlsplit(request.target)
    query = dict(parse_qsl(url.query))
    if not place.fits(query.pop("token", None)):
        text = "Open the address that raymine has printed, with its token."
        return _answer("401 Unauthorized", text, "WWW-Authenticate: Bearer")
    # Only a path: an address in Location could lead anywhere.
    rest = "/" + url.path.lstrip("/") + (f"?{urlencode(query)}" if query else "")
    cookie = f"Set-Cookie: {_COOKIE}={place.token}; HttpOnly; SameSite=Strict; Path=/"
    return _answer("303 See Other", "Welcome.", f"Location: {rest}", cookie)


def _cookie(request: Request) -> str | None:
    jar: SimpleCookie = SimpleCookie()
    with contextlib.suppress(CookieError):
        jar.load(request.headers.get("cookie", ""))
    found = jar.get(_COOKIE)
    return None if found is None else found.value


def _answer(status: str, text: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(text)}"]
    return "\r\n".join([*lines, *headers, "Cache-Control: no-store", "Connection: close", "", text]).encode()


class Gate:
    """Passes connections on from `door`, a listening socket, to a loopback port, on a thread of its own."""

    def __init__(self, place: Place, door: socket.socket, inner_port: int) -> None:
        self._place, self._door, self._port = place, door, inner_port
        self._loop = asyncio.new_event_loop()
        self._ended: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymine-view-gate", daemon=True)
        self._thread.start()
        self._ready.wait(10)

    def stop(self) -> None:
        """Close the door and all connections."""
        with contextlib.suppress(RuntimeError):
            if self._ended is not None:
                self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._connected, sock=self._door, limit=_HEADER)
        self._ready.set()
        await self._ended.wait()
        server.close()
        open_ones = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        # Transports close their sockets in the next round of the loop.
        await asyncio.sleep(0.02)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _SECONDS)
            request = Request.parse(head)
            reply = b"" if request is None else answer_to(request, self._place)
            if reply is not None:
                writer.write(reply)
                await writer.drain()
            else:
                await self._pass_on(head, reader, writer)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            # A client that went away, sends nothing, or sends too much; or the gate is closed, which cancels this.
            # asyncio would log a task that ends as cancelled as an error.
            return
        finally:
            writer.close()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            inner_writer.write(_closing(head))
            ways = [_copy(reader, inner_writer), _copy(inner_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            # viser closes the connection after each answer; a page that goes away ends its own.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            inner_writer.close()


def _closing(head: bytes) -> bytes:
    """A header that asks for one answer on this connection, unless it opens a WebSocket: each request is checked."""
    lines = head.split(b"\r\n")
    if any(line.lower().startswith(b"upgrade:") for line in lines):
        return head
    kept = [line for line in lines[:-2] if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        data = await reader.read(1 << 16)
        if not data:
            return
        writer.write(data)
        await writer.drain()
