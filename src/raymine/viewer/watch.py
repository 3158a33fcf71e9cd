"""`raymine view`: show a trained run until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from raymine.experiment import LoadedRun
from raymine.listening import Place, listen
from raymine.scenes.bank import open_bank
from raymine.step.hardness import HardView

from .photos import Photos
from .presenter import Model
from .server import ViewServer, require_viser
from .things import occupied_points


@dataclass(frozen=True)
class Watched:
    """What happened while a run was shown: seconds, and pictures that were drawn."""

    seconds: float
    pictures: int


def watch_run(
    loaded: LoadedRun,
    place: Place,
    *,
    seconds: float | None = None,
    started: Callable[[ViewServer], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Watched:
    """Serve the viewer until `seconds` are over, `stopped` is true, or Ctrl-C (`KeyboardInterrupt`) ends it.

    started: called once the server can be reached.
    """
    require_viser()
    # First of all, so that a port that is in use is an error before anything else is done.
    door = listen(place)
    scene, renderer = loaded.scene, loaded.renderer
    photos = Photos(scene, loaded.trained, lambda: open_bank(scene, loaded.trained))

    def hard_view(index: int, longest: int, *, unwanted: Callable[[], bool]) -> HardView | None:
        return loaded.hard_view(photos.images, loaded.trained, index, longest, unwanted=unwanted)

    model = Model(renderer, hard_view)
    begin = time.monotonic()
    with ViewServer(
        place, door, scene, loaded.device, loaded.run.path, photos=photos, occupied=lambda: occupied_points(renderer)
    ) as server:
        started(server)
        presenter = server.presenter
        title = f"**{loaded.run.path.name}**, step {loaded.step}"
        server.panel.tell(title)
        while not stopped() and (seconds is None or time.monotonic() - begin < seconds):
            left = 1.0 if seconds is None else max(0.0, seconds - (time.monotonic() - begin))
            presenter.wait(min(0.5, left))
            if presenter.draw_next(model):
                rate = presenter.speed.rays_per_second / 1e6
                server.panel.tell(f"{title}, {rate:.2g} million rays/s", presenter.caption)
        return Watched(time.monotonic() - begin, presenter.pictures)
