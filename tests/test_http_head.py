"""Heads of HTTP requests: what is read, and what is refused."""

from __future__ import annotations

import pytest

from raymine.http_head import MOST_BYTES, Head, NotHttp, head_end, parse_head


def head(first: bytes, *headers: bytes) -> Head:
    data = b"\r\n".join([first, b"Host: a.example:80", *headers, b"", b""])
    assert head_end(data + b"body") == len(data)
    return parse_head(data)


def test_a_request_is_read() -> None:
    found = head(b"POST /render?a=1&b=%20 HTTP/1.1", b"Content-Length:\t12 ", b"Cookie: a=1", b"COOKIE: b=2", b"X:")
    assert (found.method, found.path, found.query) == ("POST", "/render", "a=1&b=%20")
    assert found.headers == {"host": "a.example:80", "content-length": "12", "cookie": "a=1; b=2", "x": ""}
    assert (found.length, found.coded, found.has_body, found.newest) == (12, False, True, True)


def test_lists_bodies_and_versions() -> None:
    found = head(b"GET / HTTP/1.1", b"Connection: Keep-Alive, Upgrade", b"Connection: x", b"Content-Length: 0")
    assert found.listed("connection") == {"keep-alive", "upgrade", "x"}
    assert not found.has_body
    assert head(b"GET / HTTP/1.1", b"Transfer-Encoding: chunked").has_body
    assert not parse_head(b"GET / HTTP/1.0\r\n\r\n").newest


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"http://a.example:80/x?y", "/x"), (b"HTTPS://A.example:80", "/"), (b"*", "*"), (b"//x", "//x")],
)
def test_targets(target: bytes, path: str) -> None:
    assert head(b"GET " + target + b" HTTP/1.1").path == path


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET /", "METHOD TARGET HTTP/1.1"),
        (b"GET / HTTP/2.0", "METHOD TARGET"),
        (b"GET  / HTTP/1.1", "METHOD TARGET"),
        (b"GET /a b HTTP/1.1", "METHOD TARGET"),
        (b"GET /\xff HTTP/1.1", "METHOD TARGET"),
        (b"GET /\r HTTP/1.1", "METHOD TARGET"),
        (b"GET / HTTP/1.1", "no header Host"),
        (b"GET http://[x/health HTTP/1.1\r\nHost: a", "another one in its header Host"),
        (b"GET http://b/ HTTP/1.1\r\nHost: a", "another one in its header Host"),
        (b"GET a:80 HTTP/1.1\r\nHost: a", "must be a path"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", "host may occur once"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b", "NAME: VALUE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : b", "NAME: VALUE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rContent-Length: 5", "NAME: VALUE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00", "NAME: VALUE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nnothing", "NAME: VALUE"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5", "content-length may occur once"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5", "one whole number"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +5", "one whole number"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000, "one whole number"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
            "neither with Content-Length",
        ),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked", "nor with HTTP/1.0"),
        (b"GET / HTTP/1.1\r\nHost: a" + b"\r\nX: 1" * 100, "up to 100 headers"),
    ],
)
def test_what_two_programs_could_read_differently_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(NotHttp, match=words):
        parse_head(data + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x16\x03\x01", "not HTTP"),
        (b"\r\nGET / HTTP/1.1\r\n\r\n", "not HTTP"),
        (b"GET / HTTP/1.1\nHost: a\n", "LF alone"),
        (b"GET /" + b"x" * MOST_BYTES, "up to 65536 bytes"),
    ],
)
def test_what_cannot_become_a_head_is_refused_before_it_ends(data: bytes, words: str) -> None:
    with pytest.raises(NotHttp, match=words):
        head_end(data)


def test_an_unfinished_head_waits_for_the_rest() -> None:
    assert head_end(b"") is None
    assert head_end(b"GET / HTTP/1.1\r\nHost: a\r\n") is None
    # What follows a head is not looked at: it may be of any form.
    assert head_end(b"GET / HTTP/1.1\r\n\r\n\n\n") == 18
