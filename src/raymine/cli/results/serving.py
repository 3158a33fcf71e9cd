"""What `raymine view` and `raymine serve` have in common: options, opening the run, and telling the address."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import tyro

from .. import output
from .opening import open_run

if TYPE_CHECKING:
    from raymine.experiment import LoadedRun
    from raymine.listening import Place


class Server(Protocol):
    """A server that listens at `place`; url: what to open or to ask."""

    place: Place
    url: str


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A command that opens a run and listens until it is stopped."""

    run: tyro.conf.Positional[Path]
    """Run folder."""
    host: str = "127.0.0.1"
    """Where to listen. The default is for this machine alone; others need a token, which is printed."""
    port: int = 0
    """Port; 0 is any free one."""
    token: str | None = None
    """Ask for this token, also on this machine."""
    seconds: float | None = None
    """Stop after this many seconds; Ctrl-C stops it too."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The checkpoint to use; `best` is selected by the views of `raymine train --hold-out`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to render on."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout when the server is ready."""

    def place(self) -> Place:
        """Where to listen; a mistake in these options is an error before anything is loaded."""
        from raymine.config import require_seconds
        from raymine.listening import Place

        if self.seconds is not None:
            require_seconds(self.seconds, "seconds")
        place = Place(self.host, self.port, self.token)
        if place.warning:
            output.warn(place.warning)
        return place

    def load(self) -> LoadedRun:
        """Open the run."""
        return open_run(self.run, checkpoint=self.checkpoint, device=self.device, allow=self.allow)

    def tell(self, server: Server, step: int, *lines: str) -> None:
        """Print the address of a server that is ready, and `lines` for people."""
        if self.json:
            output.emit_json({"run": self.run, "step": step, "url": server.url, "token": server.place.token})
        else:
            output.results().print(server.url, markup=False, soft_wrap=True)
            for line in lines:
                output.say(line)
        sys.stdout.flush()
