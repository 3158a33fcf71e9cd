"""The head of an HTTP/1.1 request: its first line and its headers, read strictly.

Two programs that read a malformed request differently, such as a proxy and a server behind it, can disagree about where
it ends. One of them then answers as a request what the other took for a body. So whatever RFC 9112 leaves open to a
reader is refused here: lines that end otherwise than in CR LF, folded headers, and headers that may occur only once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_BYTES = 1 << 16
"""The longest head."""
_MOST_HEADERS = 100
_ONCE = {"authorization", "content-length", "content-type", "expect", "host", "origin", "transfer-encoding"}

_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_FIRST = re.compile(rb"(%s) ([!\"$-~]+) HTTP/1\.([0-9])" % _TOKEN)
_FIELD = re.compile(rb"(%s):([\t -~\x80-\xff]*)" % _TOKEN)
_ABSOLUTE = re.compile(r"https?://([^/?]*)(.*)", re.IGNORECASE)
_LONE_FEED = re.compile(rb"(?<!\r)\n")


class NotHttp(ValueError):
    """What was sent is not a request. `code`: of the HTTP answer; the text says what is wrong with it."""

    def __init__(self, what: str, code: int = 400) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class Head:
    """A request without its body. Names of headers are in lower case; values of a repeated header are joined.

    path, query: of the target, with neither percent-decoded. length: of the body, as its header says; None: no such
    header. coded: the body has a transfer coding instead, such as chunks.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int | None = None
    coded: bool = False
    newest: bool = True
    """Whether it is HTTP/1.1 and not 1.0."""

    @property
    def has_body(self) -> bool:
        return self.coded or bool(self.length)

    def listed(self, name: str) -> set[str]:
        """The values, in lower case, of a header that is a list."""
        return {each.strip().lower() for each in self.headers.get(name, "").split(",")}


def head_end(data: bytes) -> int | None:
    """The number of bytes of the head that `data` begins with; None: more must come.

    `NotHttp` as soon as it is certain that no head begins so, without waiting for the rest.
    """
    at = data.find(b"\r\n\r\n")
    found = data if at < 0 else data[: at + 4]
    if found and not found[:1].isalpha():
        raise NotHttp("The request is not HTTP/1.1.")
    if _LONE_FEED.search(found):
        raise NotHttp("A line of the request ends in LF alone; lines of HTTP end in CR LF.")
    if len(found) > MOST_BYTES:
        raise NotHttp(f"The first line and the headers may have up to {MOST_BYTES} bytes.", 431)
    return None if at < 0 else at + 4


def parse_head(data: bytes) -> Head:
    """Read a head, as `head_end` finds it. `NotHttp` if it is none."""
    first, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        raise NotHttp("The first line of the request is not METHOD TARGET HTTP/1.1.")
    headers = _headers(lines)
    newest = found[3] != b"0"
    if newest and "host" not in headers:
        raise NotHttp("The request has no header Host.")
    path, query = _target(found[2].decode("ascii"), headers.get("host", ""))
    length, coded = headers.get("content-length"), "transfer-encoding" in headers
    if length is not None and not re.fullmatch("[0-9]{1,18}", length):
        raise NotHttp("Content-Length must be one whole number of up to 18 digits.")
    if coded and (length is not None or not newest):
        raise NotHttp("Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0.")
    return Head(
        found[1].decode("ascii"), path, query, headers, None if length is None else int(length), coded, newest=newest
    )


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > _MOST_HEADERS:
        raise NotHttp(f"The request may have up to {_MOST_HEADERS} headers.", 431)
    headers: dict[str, str] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise NotHttp("A header is not NAME: VALUE on one line.")
        name, value = found[1].decode("ascii").lower(), found[2].strip(b" \t").decode("latin-1")
        if name in headers:
            if name in _ONCE:
                raise NotHttp(f"The header {name} may occur once only.")
            value = headers[name] + ("; " if name == "cookie" else ", ") + value
        headers[name] = value
    return headers


def _target(target: str, host: str) -> tuple[str, str]:
    """The path and the query of the target."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        if absolute[1].lower() != host.lower():
            raise NotHttp("The request names one host in its first line, and another one in its header Host.")
        target = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    elif not target.startswith("/") and target != "*":
        raise NotHttp("The target of the request must be a path, or an address that begins with http://.")
    path, _, query = target.partition("?")
    return path, query
