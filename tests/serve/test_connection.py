"""Connections of the HTTP service, by raw bytes, with a service that answers its own name."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from raymine.http_head import Head
from raymine.listening import Place, listen
from raymine.serve import connection
from raymine.serve.connection import Answer, Refused, Server
from support.http_raw import codes, send_raw

HOST = b"Host: 127.0.0.1\r\n"
SECOND = b"GET /second HTTP/1.1\r\n" + HOST + b"\r\n"


class Echo:
    """Answers with the path and the body, and keeps what it was told."""

    def __init__(self) -> None:
        self.stopping = False
        self.most_body = 1000
        self.told: list[tuple[str, int]] = []

    def admit(self, head: Head) -> None:
        if head.path == "/refused":
            raise Refused(429, "Not now.", "Later.", retry=1.5)

    def answer(self, head: Head, body: bytes) -> Answer:
        if head.path == "/bug":
            raise KeyError("a bug")
        return Answer(200, head.path.encode() + b" " + body, "text/plain")

    def answered(self, path: str, code: int) -> None:
        self.told.append((path, code))


class Running:
    """A server on a port of its own."""

    def __init__(self) -> None:
        self.echo, door = Echo(), listen(Place())
        self.port = door.getsockname()[1]
        self.server = Server(door, self.echo)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def stop(self) -> None:
        self.echo.stopping = True
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.stop()


def test_requests_on_one_connection_are_answered_in_order(running: Running) -> None:
    post = b"POST /first HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}"
    found = send_raw(running.port, post + SECOND + b"HEAD /third HTTP/1.0\r\n\r\n" + SECOND)
    assert codes(found) == [200, 200, 200]
    assert b"/first {}HTTP" in found
    assert b"/second HTTP" in found
    # HTTP/1.0 has one request on a connection, and HEAD no body.
    assert found.endswith(b"Connection: close\r\n\r\n")
    assert running.echo.told == [("/first", 200), ("/second", 200), ("/third", 200)]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(SECOND), 400),
        (b"DELETE / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(SECOND), 400),
        (b"HEAD / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(SECOND), 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(SECOND), 411),
        (b"POST / HTTP/1.1\r\n" + HOST + b"\r\n", 411),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SECOND), 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"junk\r\nContent-Length: %d\r\n\r\n" % len(SECOND), 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\rContent-Length: %d\r\n\r\n" % len(SECOND), 400),
        (b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n", 400),
        (b"GET http://[x/health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /refused HTTP/1.1\r\n" + HOST + b"\r\n", 429),
    ],
)
def test_no_body_is_taken_for_a_request(running: Running, first: bytes, code: int) -> None:
    assert codes(send_raw(running.port, first + SECOND)) == [code]
    assert [told for _, told in running.echo.told] == [code]


def test_refusals_say_why_and_reach_clients_that_still_send(running: Running) -> None:
    big = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 8000000\r\n\r\n" + b" " * 8_000_000
    found = send_raw(running.port, big)
    assert codes(found) == [413]
    assert found.endswith(b'{"error": "The body may have up to 1000 bytes."}\n')
    found = send_raw(running.port, b"GET /refused HTTP/1.1\r\n" + HOST + b"\r\n")
    assert b"Retry-After: 2\r\n" in found
    assert found.endswith(b'{"error": "Not now.", "hint": "Later."}\n')


def test_a_client_that_asks_first_is_told_to_send_its_body(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
        client.sendall(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.read() == b"/ {}"


def keep_sending(client: socket.socket) -> None:
    """A byte now and then, for ten seconds at most."""
    for _ in range(200):
        client.sendall(b"a")
        time.sleep(0.05)


@pytest.mark.parametrize("body", [False, True])
def test_a_client_that_sends_slowly_loses_its_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch, body: bool
) -> None:
    monkeypatch.setattr(connection, "_SECONDS", 0.5)
    end = b"Content-Length: 900\r\n\r\n" if body else b"X: "
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
        client.sendall(b"POST / HTTP/1.1\r\n" + HOST + end)
        with pytest.raises(ConnectionError):
            keep_sending(client)


def test_it_stops_while_further_connections_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CONNECTIONS", 1)
    running = Running()
    with socket.create_connection(("127.0.0.1", running.port)), socket.create_connection(("127.0.0.1", running.port)):
        time.sleep(0.3)
        begin = time.monotonic()
        running.stop()
        assert time.monotonic() - begin < 5
        assert not running.thread.is_alive()


def test_a_bug_is_logged_and_answered_with_500(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert codes(send_raw(running.port, b"GET /bug HTTP/1.1\r\n" + HOST + b"\r\n")) == [500]
    assert "could not be answered" in caplog.text
