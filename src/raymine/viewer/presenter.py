"""Decides which client gets a picture next and at which resolution, and draws it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from raymine.contracts import Renderer, Scene
from raymine.experiment import HardViews

from .camera import camera_of, pose_of
from .draw import OF_PHOTOS, Look, draw, error_of, letterboxed
from .pacing import STAGES, Speed, size_of_stage
from .photos import Photos

REST = 0.12
"""Seconds without a movement after which a camera rests."""


@dataclass(frozen=True)
class Model:
    """What is looked at: the renderer of a model, and where its training images are hard."""

    renderer: Renderer
    hard_view: HardViews


@dataclass
class Screen:
    """A client. stage: the next picture to draw for it; `STAGES` if there is none. moved: when its camera moved."""

    client: Any
    stage: int = 0
    moved: float = 0.0
    drawn: int = 0
    number: int = field(default=0, repr=False)


class Presenter:
    """The screens of all clients. Methods may be called from any thread; `draw_next` from one at a time.

    most_seconds: the longest that one picture may take. photos: of the training views, for what compares with them;
    without any, colour is drawn instead. caption: which photo the latest picture is about, for the user; else empty.
    """

    def __init__(
        self,
        scene: Scene,
        device: torch.device,
        *,
        most_seconds: float = 30.0,
        photos: Photos | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scene, self.device, self.most_seconds = scene, device, most_seconds
        self.photos = photos if photos is not None and photos.trained else None
        self.look = Look()
        self.pictures, self.caption = 0, ""
        # A ray of which gradients are wanted takes about five times as long as one that is rendered.
        first = 1e5 if device.type == "cpu" else 2e7
        self._rendering, self._differentiating = Speed(first), Speed(first / 5)
        self._now = now
        self._screens: dict[int, Screen] = {}
        self._work = threading.Condition()

    @property
    def speed(self) -> Speed:
        """That of the present kind of picture."""
        return self._differentiating if self.look.kind == "hard" else self._rendering

    @property
    def watched(self) -> bool:
        """Whether anybody is connected. Without clients nothing is drawn."""
        return bool(self._screens)

    def joined(self, client: Any) -> None:
        with self._work:
            self._screens[client.client_id] = Screen(client, moved=self._now() - REST)
            self._work.notify_all()

    def left(self, client: Any) -> None:
        with self._work:
            self._screens.pop(client.client_id, None)

    def moved(self, client: Any) -> None:
        """The camera of a client has moved: begin again with a small picture."""
        with self._work:
            screen = self._screens.get(client.client_id)
            if screen is not None:
                screen.stage, screen.moved = 0, self._now()
                screen.number += 1
                self._work.notify_all()

    def changed(self, look: Look) -> None:
        """Something else is to be drawn: begin again for every client."""
        with self._work:
            self.look = look
            for screen in self._screens.values():
                screen.stage = 0
                screen.number += 1
            self._work.notify_all()

    def model_changed(self) -> None:
        """The model has been trained further: draw complete views again, at full resolution."""
        with self._work:
            for screen in self._screens.values():
                screen.stage = min(screen.stage, STAGES - 1)

    def wait(self, seconds: float) -> None:
        """Wait until there may be something to draw, or for `seconds`."""
        with self._work:
            if self._next() is None:
                self._work.wait(min(seconds, REST) if self._screens else seconds)

    def cost(self) -> float | None:
        """The expected seconds of the next picture; None if there is nothing to draw."""
        with self._work:
            screen = self._next()
            if screen is None:
                return None
            width, height = self._size(screen)
            return self.speed.seconds(width * height)

    def draw_next(self, model: Model) -> bool:
        """Draw one picture and send it. False if there was nothing to draw, or if it became unwanted meanwhile."""
        with self._work:
            screen = self._next()
            if screen is None:
                return False
            stage, number, look = screen.stage, screen.number, self.look
            width, height = self._size(screen)
            seen, speed = screen.client.camera, self.speed
        started = time.perf_counter()
        made = self._picture(model, seen, (width, height), look, lambda: stage > 0 and screen.number != number)
        if made is None:
            return False
        speed.measured(made.shape[0] * made.shape[1], time.perf_counter() - started)
        if look.kind in OF_PHOTOS:
            made = letterboxed(made, _canvas_of(seen))
        last = stage == STAGES - 1 or (width, height) == self._canvas(screen, look)
        screen.client.scene.set_background_image(made, format="jpeg", jpeg_quality=92 if last else 75)
        with self._work:
            screen.drawn += 1
            self.pictures += 1
            if screen.number == number:
                screen.stage = STAGES if last else stage + 1
        return True

    def _picture(
        self, model: Model, seen: Any, size: tuple[int, int], look: Look, unwanted: Callable[[], bool]
    ) -> np.ndarray | None:
        pose = pose_of(seen.wxyz, seen.position)
        if look.kind in OF_PHOTOS and self.photos is not None:
            return self._of_photo(model, self.photos, self.photos.nearest(pose, look.time), max(size), look, unwanted)
        self.caption = ""
        camera = camera_of(seen, *size)
        view = draw(model.renderer, self.scene, camera, pose, look, device=self.device, unwanted=unwanted)
        kind = look.kind if look.kind == "depth" or look.kind == "opacity" else "colour"
        return None if view is None else view.picture(kind)

    def _of_photo(
        self, model: Model, photos: Photos, number: int, longest: int, look: Look, unwanted: Callable[[], bool]
    ) -> np.ndarray | None:
        name = photos.frame(number).image.name
        if look.kind == "error":
            self.caption = f"Error against {name}"
            renderer = model.renderer
            return error_of(renderer, photos, number, look, longest=longest, device=self.device, unwanted=unwanted)
        found = model.hard_view(number, longest, unwanted=unwanted)
        if found is None:
            return None
        share = f"{100 * found.hardest_tenth:.0f} % of the gradient is on the hardest tenth of the pixels"
        self.caption = f"Hard samples of {name}: {share}"
        return found.picture()

    def _next(self) -> Screen | None:
        """The screen whose turn it is: one that moves before one that rests, the one with fewer pictures first."""
        now = self._now()
        ready = [
            screen
            for screen in self._screens.values()
            if screen.stage == 0 or (screen.stage < STAGES and now - screen.moved >= REST)
        ]
        return min(ready, key=lambda screen: (screen.stage, screen.drawn), default=None)

    def _size(self, screen: Screen) -> tuple[int, int]:
        canvas = _canvas_of(screen.client.camera)
        return size_of_stage(screen.stage, canvas, self.speed, self.look.longest, self.most_seconds)

    def _canvas(self, screen: Screen, look: Look) -> tuple[int, int]:
        """The size of the last stage if time did not matter."""
        return size_of_stage(STAGES - 1, _canvas_of(screen.client.camera), Speed(1e18), look.longest, 1.0)


def _canvas_of(seen: Any) -> tuple[int, int]:
    """Width and height in pixels of a client's canvas."""
    return max(1, int(seen.image_width)), max(1, int(seen.image_height))
