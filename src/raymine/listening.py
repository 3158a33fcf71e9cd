"""Sockets that servers listen on: who may reach them, tokens, and errors that say what to do."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from raymine.errors import ConfigError, ResourceError, option

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What the header `Authorization: Bearer` takes (RFC 6750). A cookie takes it too, and an address once it is quoted."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


@dataclass(frozen=True)
class Place:
    """Where a server listens, and the token that its clients must send; None: none is asked for.

    port 0 takes any free port. Other machines reach every host but loopback, so one of those always has a token.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"{option('port')} must be between 0 and 65535, got {self.port}.")
        if not self.host:
            raise ConfigError(f"{option('host')} must not be empty.", hint="127.0.0.1 is this machine alone.")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            odd = next((repr(each) for each in self.token if not _TOKEN.fullmatch(each)), "nothing")
            raise ConfigError(
                f"{option('token')} must be of the letters a to z, digits and - . _ ~ + / = only, got {odd} in it.",
                hint="Browsers and proxies change other characters in addresses, cookies and headers.",
            )
        if self.token is None and not is_loopback(self.host):
            object.__setattr__(self, "token", new_token())

    @property
    def warning(self) -> str:
        """A sentence for the user about who can reach the server; empty for this machine alone."""
        if is_loopback(self.host):
            return ""
        return (
            f"{option('host', self.host)} lets other machines connect, without encryption. Whoever has the token can "
            "use the server. Do this in a network that you trust, or use an SSH tunnel instead."
        )

    def fits(self, given: str | None) -> bool:
        """Whether a client's token is right, or none is asked for. Takes the same time for any wrong token."""
        if self.token is None:
            return True
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())


def is_stranger(place: Place, host: str, origin: str | None) -> bool:
    """Whether a request, by its headers Host and Origin, comes from outside although the server is not for outside.

    A page of another site (Origin), or a name that was pointed at this machine from outside (Host, where no token
    protects the server), would make the user's own browser ask on its behalf.
    """
    named = _HOST.fullmatch(host.lower())
    if named is None:
        # HTTP/1.0 may go without Host; browsers always name one.
        return place.token is None or bool(host) or origin is not None
    if place.token is None and not is_loopback(named[1]):
        return True
    try:
        return origin is not None and urlsplit(origin.lower()).netloc != named[0]
    except ValueError:
        return True


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(18)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, seen from itself only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(place: Place) -> socket.socket:
    """A socket that listens at `place`. `ResourceError` if the port is taken, `ConfigError` for an unknown host."""
    host = place.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{option('host', place.host)}: there is no such host.", hint="Try 127.0.0.1.") from error
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(512)
    except OSError as error:
        made.close()
        raise _problem(place, error) from error
    return made


def url_of(place: Place, bound: socket.socket) -> str:
    """The address to open on this machine, without the token."""
    host = place.host.strip("[]")
    if host in ("0.0.0.0", "::"):
        # Every address of this machine: a browser needs a name.
        host = socket.gethostname() or "127.0.0.1"
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}"


def _problem(place: Place, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"{option('port', place.port)} is in use: another server listens there.",
            hint=f"Stop that one, or give another {option('port')}; {option('port', 0)} takes any free one.",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ResourceError(
            f"No permission to listen on {option('port', place.port)}.", hint="Ports from 1024 up need none."
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return ConfigError(
            f"{option('host', place.host)} is not an address of this machine.", hint="127.0.0.1 is this machine alone."
        )
    return ResourceError(f"Cannot listen on {place.host}, port {place.port}: {error.strerror or error}.")
