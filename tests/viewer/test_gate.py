"""The door of the viewer: tokens, other sites, and names from outside."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
from urllib.parse import urlsplit

import pytest

from raymine.http_head import Head, parse_head
from raymine.listening import Place, listen
from raymine.viewer.gate import Gate, answer_to
from raymine.viewer.server import address_of
from support.http_raw import codes, malformed, send_raw

TOKEN = Place("0.0.0.0", 0, "secret")
HERE, TOKEN_HERE = Place(), Place(token="secret")


def request(target: str = "/", method: str = "GET", **headers: str) -> Head:
    pairs = {"host": "127.0.0.1:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs.items())]
    return parse_head("\r\n".join([*lines, "", ""]).encode())


@pytest.mark.parametrize(
    ("place", "asked", "status"),
    [
        (HERE, request(), None),
        (HERE, request(host="localhost:8080"), None),
        (HERE, request(host="evil.example:8080"), "403"),
        (HERE, request(origin="http://evil.example"), "403"),
        (HERE, request(origin="http://127.0.0.1:8080"), None),
        (TOKEN, request(), "401"),
        (TOKEN, request("/?token=wrong"), "401"),
        (TOKEN, request(cookie="raymine_view_8080=wrong"), "401"),
        (TOKEN, request(cookie="a=b; raymine_view_8080=secret"), None),
        (TOKEN, request(host="machine:8080", cookie="raymine_view_8080=secret"), None),
        (TOKEN, request(cookie="raymine_view_8080=secret", origin="http://evil.example"), "403"),
        (TOKEN, request(upgrade="websocket"), "401"),
        (TOKEN, request(cookie="raymine_view_8081=secret"), "401"),
        (TOKEN, request(cookie='other={"a": 1}; odd; raymine_view_8080=secret'), None),
        (TOKEN, request(host="machine:9000", cookie="raymine_view_8080=secret"), "401"),
        (TOKEN, request(host="machine:9000", cookie="raymine_view_9000=secret"), None),
        (HERE, request(host="[::1"), "403"),
        (HERE, request(origin="http://[x"), "403"),
        (HERE, request(method="POST"), "405"),
        (HERE, request(content_length="5"), "400"),
        (HERE, request(transfer_encoding="chunked"), "400"),
    ],
)
def test_who_may_pass(place: Place, asked: Head, status: str | None) -> None:
    answer = answer_to(asked, place)
    assert answer is None if status is None else answer is not None and answer.startswith(f"HTTP/1.1 {status}".encode())


def test_token_in_the_address_becomes_a_cookie() -> None:
    answer = answer_to(request("//evil.example/?token=secret&a=1"), TOKEN)
    assert answer is not None
    assert b"303 See Other" in answer
    assert b"Location: /evil.example/?a=1\r\n" in answer
    assert b"Set-Cookie: raymine_view_8080=secret; HttpOnly; SameSite=Lax" in answer


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "/\\/evil.example"])
def test_the_way_on_leads_to_this_server(path: str) -> None:
    answer = answer_to(request(path + "?token=secret"), TOKEN)
    assert answer is not None
    (place,) = [line for line in answer.decode().split("\r\n") if line.startswith("Location: ")]
    assert re.fullmatch(r"Location: /([^/\\].*)?", place)


def test_the_address_that_is_printed_and_its_cookie_let_in() -> None:
    place = Place(token="a+b/c=~.-_")
    with listen(place) as door:
        address = urlsplit(address_of(place, door))
        host = address.netloc
    answer = answer_to(request(f"{address.path}?{address.query}", host=host), place)
    assert answer is not None
    (cookie,) = [line for line in answer.decode().split("\r\n") if line.startswith("Set-Cookie: ")]
    given = cookie.removeprefix("Set-Cookie: ").partition(";")[0]
    assert answer_to(request(host=host, cookie=given), place) is None


class Inner:
    """What viser is behind the gate: answers each connection alike, and keeps what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self.sent = answer, b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(0.5)
                    self.sent += connection.recv(1 << 16)
                    connection.sendall(self._answer)
                    with contextlib.suppress(TimeoutError):
                        while more := connection.recv(1 << 16):
                            self.sent += more

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def through_gate(data: bytes, answer: bytes, *, ends: bool = True) -> tuple[bytes, bytes]:
    """What comes back from the gate, and what viser was sent."""
    inner, door = Inner(answer), listen(HERE)
    port = door.getsockname()[1]
    gate = Gate(HERE, door, inner.port)
    try:
        return send_raw(port, data, ends=ends), inner.sent
    finally:
        gate.stop()
        inner.close()


SECOND = b"GET /second HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"),
        (
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
        ),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n\r\n", b"HTTP/1.1 101 Go\r\n\r\n"),
        (UPGRADE, b"HTTP/1.1 200 OK\r\n\r\n"),
    ],
)
def test_nothing_behind_the_first_request_passes_unchecked(first: bytes, answer: bytes) -> None:
    found, sent = through_gate(first + SECOND, answer)
    assert found == answer
    assert sent.startswith(b"GET / HTTP/1.1\r\n")
    assert b"/second" not in sent
    assert first == UPGRADE or b"Upgrade" not in sent


def test_a_websocket_passes_once_viser_has_agreed() -> None:
    found, sent = through_gate(UPGRADE + b"early", b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello", ends=False)
    assert found == b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello"
    assert sent == UPGRADE + b"early"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\x00\xff", 400),
        (b"GET http://[x/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"x" * 70_000, 431),
    ],
)
def test_what_is_wrong_is_answered_and_not_logged(data: bytes, code: int, caplog: pytest.LogCaptureFixture) -> None:
    found, sent = through_gate(data, b"HTTP/1.1 200 OK\r\n\r\n")
    assert (codes(found), sent) == ([code], b"")
    assert caplog.records == []


def test_malformed_requests_leave_the_gate_in_order(caplog: pytest.LogCaptureFixture) -> None:
    inner, door, draw = Inner(b"HTTP/1.1 200 OK\r\n\r\n"), listen(TOKEN_HERE), random.Random(1)
    port = door.getsockname()[1]
    gate = Gate(TOKEN_HERE, door, inner.port)
    try:
        found = {code for _ in range(300) for code in codes(send_raw(port, malformed(draw)))}
        assert {400, 401, 405, 431} <= found <= {400, 401, 403, 405, 431}
        good = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nCookie: raymine_view_1=secret\r\n\r\n"
        assert codes(send_raw(port, good)) == [200]
    finally:
        gate.stop()
        inner.close()
    assert caplog.records == []


def test_gate_passes_bytes_on_and_stops() -> None:
    inner = socket.create_server(("127.0.0.1", 0))
    heads = []

    def answer() -> None:
        connection, _ = inner.accept()
        with connection:
            heads.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")

    thread = threading.Thread(target=answer)
    thread.start()
    door = listen(HERE)
    port = door.getsockname()[1]
    gate = Gate(HERE, door, inner.getsockname()[1])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: keep-alive\r\n\r\n".encode())
            found = b"".join(iter(lambda: client.recv(4096), b""))
        assert found.endswith(b"hello")
        assert b"Connection: close" in heads[0]
        assert b"keep-alive" not in heads[0]
    finally:
        gate.stop()
        thread.join(5)
        inner.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_gate_with_open_connections_stops_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inner:
        door = listen(HERE)
        port = door.getsockname()[1]
        gate = Gate(HERE, door, inner.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n\r\n".encode())
            passed, _ = inner.accept()
            with passed:
                assert passed.recv(4096)
                gate.stop()
    assert caplog.records == []
