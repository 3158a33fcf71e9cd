"""Sockets and tokens of servers."""

from __future__ import annotations

import pytest

from raymine.errors import ConfigError, ResourceError
from raymine.listening import Place, is_loopback, is_stranger, listen, new_token, url_of


def test_loopback_needs_no_token_and_every_other_host_has_one() -> None:
    assert Place().token is None
    assert Place().warning == ""
    other = Place("0.0.0.0")
    assert other.token is not None
    assert len(other.token) >= 20
    assert "token" in other.warning
    assert Place("0.0.0.0").token != other.token
    assert Place("0.0.0.0", token="mine").token == "mine"


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.5", True), ("::1", True), ("localhost", True), ("::", False)])
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_token_is_compared_as_a_whole() -> None:
    place = Place(token="secret")
    assert place.fits("secret")
    assert not any(place.fits(given) for given in (None, "", "secre", "secret ", "sécret"))
    assert Place().fits(None)


def test_tokens_of_base64_and_own_ones_are_taken() -> None:
    for token in ("aZ09-._~+/==", new_token()):
        assert Place(token=token).fits(token)


@pytest.mark.parametrize(
    ("token", "host", "origin", "expected"),
    [
        (None, "127.0.0.1:80", None, False),
        (None, "LOCALHOST:80", "http://localhost:80", False),
        (None, "[::1]:80", "http://[::1]:80", False),
        (None, "", None, True),
        (None, "evil.example:80", None, True),
        (None, "localhost/evil.example", None, True),
        (None, "a@localhost", None, True),
        (None, "[::1", None, True),
        (None, "127.0.0.1:80", "null", True),
        (None, "127.0.0.1:80", "http://127.0.0.1:81", True),
        (None, "127.0.0.1:80", "http://[x", True),
        ("t", "machine:80", None, False),
        ("t", "machine:80", "https://machine:80", False),
        ("t", "machine:80", "http://evil.example", True),
        ("t", "", None, False),
        ("t", "", "null", True),
        ("t", "[x", None, True),
        ("t", "\xff", None, True),
    ],
)
def test_strangers(token: str | None, host: str, origin: str | None, expected: bool) -> None:
    assert is_stranger(Place(token=token), host, origin) is expected


def test_port_in_use_names_the_port_and_another_way() -> None:
    with listen(Place()) as first:
        port = first.getsockname()[1]
        assert url_of(Place(), first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ResourceError, match=f"`port={port}` is in use: another server listens there"):
            listen(Place(port=port))


@pytest.mark.parametrize(
    ("host", "port", "token", "words"),
    [
        ("127.0.0.1", 65536, None, "between 0 and 65535"),
        ("", 0, None, "must not be empty"),
        ("no such host", 0, None, "no such host"),
        ("192.0.2.1", 0, None, "not an address of this machine"),
        ("127.0.0.1", 0, "é", "got 'é' in it"),
        ("127.0.0.1", 0, "", "got nothing in it"),
        ("127.0.0.1", 0, "a b", "got ' ' in it"),
        *(("127.0.0.1", 0, f"a{odd}b", "letters a to z, digits") for odd in ';&#%"\\,\n'),
    ],
)
def test_wrong_places_are_refused_by_name(host: str, port: int, token: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listen(Place(host, port, token)).close()
