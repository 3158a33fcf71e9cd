"""Raw bytes to and from HTTP servers on this machine, and malformed requests."""

from __future__ import annotations

import random
import re
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor


def send_raw(port: int, data: bytes, seconds: float = 10.0, *, ends: bool = True) -> bytes:
    """Send `data`, then read until the server closes, or for `seconds` if it does not. ends: say that no more comes."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        try:
            client.sendall(data)
            if ends:
                client.shutdown(socket.SHUT_WR)
            while more := client.recv(1 << 16):
                found += more
        except (ConnectionError, TimeoutError):
            pass
    return found


def codes(answers: bytes) -> list[int]:
    """The status codes of the answers on one connection."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", answers)]


METHODS = [b"GET", b"POST", b"HEAD", b"DELETE", b"OPTIONS", b"BREW", b"get", b"G T", b"\xff", b""]
TARGETS = [
    *(
        b"/render",
        b"/health",
        b"/metrics",
        b"/openapi.json",
        b"/",
        b"//",
        b"*",
        b"/../../etc/passwd",
        b"/health?a=%zz#",
    ),
    *(b"http://[x/health", b"http://127.0.0.1/health", b"[::1", b"\x00", b"/\xff\xfe", b"/" + b"a" * 70_000, b""),
]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/1.1 ", b"HTTP/", b"http/1.1", b""]
VALUES = [
    *(b"127.0.0.1", b"localhost", b"[::1", b"[::1]:x", b"evil.example", b"http://[x", b"null", b"chunked", b"close"),
    *(b"application/json", b"text/\x00", b"0", b"2", b"-1", b"1e3", b"99999999999999999999", b"2, 2", b"100-continue"),
    *(b"websocket", b"upgrade", b"Bearer \xff", b"Bearer", b'a=\xc3\xa9; "b', b"", b" ", b"x" * 9000),
]
NAMES = [
    *(b"Host", b"Origin", b"Content-Type", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect"),
    *(b"Authorization", b"Cookie", b"Upgrade", b"Content-Length ", b" Host", b"X\x00", b"", b"X"),
]
VIEW = b'{"position": [0, -4, 1], "target": [0, 0, 0], "width": 2, "height": 2}'
BODIES = [
    VIEW,
    VIEW,
    b"",
    b"{}",
    b"[" * 500,
    b'{"position": [0, 0, 1], "target": 1e999}',
    b"\xff\xfe",
    b"2\r\n{}\r\n0\r\n\r\n",
]
ENDS = [b"\r\n"] * 16 + [b"\n", b"\r", b"\r\n ", b"\x00"]


def malformed(draw: random.Random) -> bytes:
    """Some requests that are wrong somewhere, or not at all."""
    made = b""
    for _ in range(draw.randint(1, 3)):
        lines = [b"POST /render HTTP/1.1"]
        if draw.random() < 0.4:
            lines[0] = b" ".join([draw.choice(METHODS[:6]), draw.choice(TARGETS), draw.choice(VERSIONS[:2])])
        elif draw.random() < 0.3:
            lines[0] = draw.choice([b" ", b"  ", b"\t"]).join(map(draw.choice, (METHODS, TARGETS, VERSIONS)))
        body = draw.choice(BODIES)
        lines += [b"Host: 127.0.0.1"] * (draw.random() < 0.9) + [b"Content-Type: application/json"] * (
            draw.random() < 0.8
        )
        if draw.random() < 0.8:
            lines.append(b"Content-Length: %d" % max(0, len(body) + draw.choice([0, 0, 0, 0, 0, -1, 1])))
        wrong = [draw.choice(NAMES) + draw.choice([b": ", b":", b" : ", b""]) + draw.choice(VALUES) for _ in range(4)]
        lines += wrong[: draw.choice([0, 0, 0, 1, 1, 2, 4])]
        end = draw.choice(ENDS)
        made += b"".join(line + (end if draw.random() < 0.2 else b"\r\n") for line in lines) + b"\r\n" + body
    if draw.random() < 0.2:
        made = made[: draw.randint(0, len(made))]
    if draw.random() < 0.1:
        at = draw.randint(0, len(made))
        made = made[:at] + draw.randbytes(5) + made[at:]
    return made


def main(port: int, count: int, seed: int) -> None:
    """Send many malformed requests to a running server, and say how they were answered."""
    draw = random.Random(seed)
    sent = [malformed(draw) for _ in range(count)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda data: send_raw(port, data), sent))
    print(sorted(Counter(code for answer in answers for code in codes(answer)).items()))
    for data, answer in zip(sent, answers, strict=True):
        if any(code >= 500 for code in codes(answer)):
            print(data)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
