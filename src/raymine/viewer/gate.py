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
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode

from raymine.http_head import Head, NotHttp, head_end, parse_head
from raymine.listening import Place, is_stranger

_COOKIE = "raymine_view_"
"""Before the port: browsers send the cookies of a host to all of its ports."""
_SECONDS = 10.0
"""How long a client may take to send a header."""


def answer_to(request: Head, place: Place) -> bytes | None:
    """The answer to a request that must not pass, or that brings the token; None if it may pass."""
    host = request.headers.get("host", "")
    if is_stranger(place, host, request.headers.get("origin")):
        return _answer("403 Forbidden", "Open this viewer by the address that raymine has printed, not from elsewhere.")
    if request.method != "GET":
        return _answer("405 Method Not Allowed", "The viewer takes GET only.", "Allow: GET")
    if request.has_body:
        return _answer("400 Bad Request", "The viewer takes no request with a body.")
    name = _COOKIE + host.rpartition("]")[2].rpartition(":")[2]
    if place.token is None or place.fits(_cookie(request, name)):
        return None
    query = dict(parse_qsl(request.query))
    if not place.fits(query.pop("token", None)):
        text = "Open the address that raymine has printed, with its token."
        return _answer("401 Unauthorized", text, "WWW-Authenticate: Bearer")
    # Only a path: an address in Location could lead anywhere. Browsers take a backslash for a slash.
    path = "/" + quote(request.path.lstrip("/"), safe="/%")
    rest = path + (f"?{urlencode(query)}" if query else "")
    # Strict would keep the cookie from the page where the address was a link in a mail or a chat. The page alone has
    # nothing of the run, and the WebSockets of other sites are refused by their Origin.
    cookie = f"Set-Cookie: {name}={place.token}; HttpOnly; SameSite=Lax; Path=/"
    return _answer("303 See Other", "Welcome.", f"Location: {rest}", cookie)


def _cookie(request: Head, name: str) -> str | None:
    """Other servers of this host have cookies of any form, so they are not looked at."""
    pairs = (each.partition("=") for each in request.headers.get("cookie", "").split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)


def _answer(status: str, text: str, *headers: str) -> bytes:
    body = text.encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "Cache-Control: no-store", "Connection: close", "", ""]).encode() + body


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
        server = await asyncio.start_server(self._connected, sock=self._door)
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
            head, rest = await asyncio.wait_for(_read_head(reader), _SECONDS)
            request = parse_head(head)
            reply = answer_to(request, self._place)
            if reply is None:
                await self._pass_on(request, head, rest, reader, writer)
            else:
                writer.write(reply)
                await writer.drain()
        except NotHttp as wrong:
            # It is small, and goes out when the connection is closed.
            writer.write(_answer(f"{wrong.code} {HTTPStatus(wrong.code).phrase}", str(wrong)))
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            # A client that went away or sends nothing; or the gate is closed, which cancels this.
            # asyncio would log a task that ends as cancelled as an error.
            return
        finally:
            writer.close()

    async def _pass_on(
        self, request: Head, head: bytes, rest: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass one request on. Only what follows in a WebSocket that viser has agreed to passes unchecked."""
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            upgrades = request.listed("upgrade") == {"websocket"} and "upgrade" in request.listed("connection")
            inner_writer.write(head if upgrades else _closing(head))
            answer = await inner_reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not upgrades or answer.split(b" ")[1:2] != [b"101"]:
                await _copy(inner_reader, writer)
                return
            inner_writer.write(rest)
            tasks = [asyncio.ensure_future(way) for way in (_copy(reader, inner_writer), _copy(inner_reader, writer))]
            # Whichever side goes away first.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            inner_writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The bytes of the head of a request, and those that came with it."""
    data = b""
    while (size := head_end(data)) is None:
        more = await reader.read(1 << 16)
        if not more:
            raise EOFError
        data += more
    return data[:size], data[size:]


def _closing(head: bytes) -> bytes:
    """The head of a request that asks for one answer on its connection, and for no other protocol."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"upgrade:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        data = await reader.read(1 << 16)
        if not data:
            return
        writer.write(data)
        await writer.drain()
