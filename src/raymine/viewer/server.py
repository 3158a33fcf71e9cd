"""The server of the viewer: viser behind the gate, with its controls and its clients."""

from __future__ import annotations

import contextlib
import io
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import torch

from raymine.contracts import Scene
from raymine.errors import MissingExtraError
from raymine.listening import Place, url_of

from .camera import vertical_fov
from .gate import Gate
from .panel import Panel
from .photos import Photos
from .presenter import Presenter
from .things import Things

if TYPE_CHECKING:
    import viser


_FAREWELL = 0.3
"""Seconds for the last words to reach the pages that are open."""


def require_viser() -> None:
    """Raise `MissingExtraError` if viser is not installed."""
    try:
        import viser as _  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("viser", "view", "The viewer") from error


def address_of(place: Place, door: socket.socket) -> str:
    """What to open in a browser, with the token if one is asked for."""
    return url_of(place, door) + ("" if place.token is None else f"/?token={quote(place.token, safe='')}")


class ViewServer:
    """A running viewer of one model. Use it in a `with` block, which stops it.

    door: a socket that listens at `place`; the server closes it. device: of the renderer. photos: of the training
    views. occupied: gives the centres of occupied cells [n, 3], or None. most_seconds: the longest that one picture may
    take. `presenter` draws; whoever owns the model calls it.
    """

    def __init__(
        self,
        place: Place,
        door: socket.socket,
        scene: Scene,
        device: torch.device,
        run: Path,
        *,
        photos: Photos,
        occupied: Callable[[], np.ndarray | None],
        most_seconds: float = 30.0,
    ) -> None:
        self.place, self.url, self._photos = place, address_of(place, door), photos
        try:
            require_viser()
            self.presenter = Presenter(scene, device, most_seconds=most_seconds, photos=photos)
            self._server = _start()
            things = Things(self._server, photos)
            self._begin_at(scene)
            self.panel = Panel(self._server, self.presenter, things, occupied=occupied, export=run / "export", run=run)
            self._server.on_client_connect(self._joined)
            self._server.on_client_disconnect(self.presenter.left)
            self._gate = Gate(place, door, self._server.get_port())
        except BaseException:
            door.close()
            raise

    def clients(self) -> list[Any]:
        """viser's handles of the connected clients."""
        return list(self._server.get_clients().values())

    def stop(self, words: str = "The viewer has been stopped.") -> None:
        """Show `words` in the pages that are open, close all connections and end the threads."""
        if self.presenter.watched:
            # The page stays as it is otherwise, and looks as if nothing had ended.
            self.panel.tell(words)
            self._server.flush()
            time.sleep(_FAREWELL)
        self._gate.stop()
        # viser prints that it has stopped, on the stream of results.
        with contextlib.redirect_stdout(io.StringIO()):
            self._server.stop()
        self._photos.close()

    def __enter__(self) -> ViewServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _joined(self, client: Any) -> None:
        client.camera.on_update(lambda _: self.presenter.moved(client))
        self.presenter.joined(client)

    def _begin_at(self, scene: Scene) -> None:
        """Begin with the view of the first training camera, or the first of all."""
        self._server.scene.set_up_direction("+z")
        frames = [scene.frames[i] for i in scene.of_split("train")] or list(scene.frames)
        frame = frames[0]
        position, forward = frame.pose[:, 3], -frame.pose[:, 2]
        # What an orbit turns around: the point of the line of sight that is nearest to the middle of the scene.
        middle = np.add(scene.bounds.low, scene.bounds.high) / 2
        distance = max(float((middle - position) @ forward), 0.1)
        begin = self._server.initial_camera
        begin.position, begin.look_at = position, position + distance * forward
        begin.fov = vertical_fov(scene.cameras[frame.camera])


def _start() -> viser.ViserServer:
    """viser on a free loopback port, without its messages on the stream of results."""
    import viser

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # If another process has taken the port meanwhile, viser takes the next one. It prints its address in any case.
    with contextlib.redirect_stdout(io.StringIO()):
        server = viser.ViserServer(host="127.0.0.1", port=port, label="raymine", verbose=False)
    server.gui.configure_theme(control_layout="floating", show_logo=False, show_share_button=False)
    return server
