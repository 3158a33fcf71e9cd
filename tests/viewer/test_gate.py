"""The door of the viewer: tokens, other sites, and names from outside."""

from __future__ import annotations

import socket
import threading

import pytest

from raymine.listening import Place, listen
from raymine.viewer.gate import Gate, Request, answer_to

TOKEN = Place("0.0.0.0", 0, "secret")
HERE = Place()


def request(target: str = "/", **headers: str) -> Request:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", target, {"host": "127.0.0.1:8080", **names})


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
        (TOKEN, request(cookie="raymine_view=wrong"), "401"),
        (TOKEN, request(cookie="a=b; raymine_view=secret"), None),
        (TOKEN, request(host="machine:8080", cookie="raymine_view=secret"), None),
        (TOKEN, request(cookie="raymine_view=secret", origin="http://evil.example"), "403"),
        (TOKEN, request(upgrade="websocket"), "401"),
    ],
)
def test_who_may_pass(place: Place, asked: Request, status: str | None) -> None:
    answer = answer_to(asked, place)
    assert answer is None if status is None else answer is not None and answer.startswith(f"HTTP/1.1 {status}".encode())


def test_token_in_the_address_becomes_a_cookie() -> None:
    answer = answer_to(request("//evil.example/?token=secret&a=1"), TOKEN)
    assert answer is not None
    assert b"303 See Other" in answer
    assert b"Location: /?a=1\r\n" in answer
    assert b"Set-Cookie: raymine_view=secret; HttpOnly; SameSite=Strict" in answer


@pytest.mark.parametrize("head", [b"", b"hello\r\n\r\n", b"GET /\r\n\r\n", b"\x00\xff\r\n\r\n"])
def test_what_is_not_http_is_no_request(head: bytes) -> None:
    assert Request.parse(head) is None


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
