"""Decides which client gets a picture next and at which resolution, and draws it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from raymine.contracts import Camera, Renderer, Scene
from raymine.pictures import error_picture

from .camera import camera_of, pose_of
from .draw import Look, draw, picture_of
from .pacing import STAGES, Speed, size_of_stage

REST = 0.12
"""Seconds without a movement after which a camera rests."""

Truth = Callable[[np.ndarray], tuple[Camera, np.ndarray, np.ndarray] | None]
"""Pose [3, 4] -> camera, pose and photo [H, W, 3] in 0..1 of the nearest training view."""


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

    most_seconds: the longest that one picture may take. truth: finds the photo for the picture of errors.
    """

    def __init__(
        self,
        scene: Scene,
        device: torch.device,
        *,
        most_seconds: float = 30.0,
        truth: Truth | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scene, self.device, self.most_seconds, self.truth = scene, device, most_seconds, truth
        self.look = Look()
        self.speed = Speed(1e5 if device.type == "cpu" else 2e7)
        self.pictures = 0
        self._now = now
        self._screens: dict[int, Screen] = {}
        self._work = threading.Condition()

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

    def draw_next(self, renderer: Renderer) -> bool:
        """Draw one picture and send it. False if there was nothing to draw, or if it became unwanted meanwhile."""
        with self._work:
            screen = self._next()
            if screen is None:
                return False
            stage, number, look = screen.stage, screen.number, self.look
            width, height = self._size(screen)
            seen = screen.client.camera
        started = time.perf_counter()
        made = self._picture(renderer, seen, (width, height), look, lambda: stage > 0 and screen.number != number)
        if made is None:
            return False
        self.speed.measured(made.shape[0] * made.shape[1], time.perf_counter() - started)
        last = stage == STAGES - 1 or (width, height) == self._canvas(screen, look)
        screen.client.scene.set_background_image(made, format="jpeg", jpeg_quality=92 if last else 75)
        with self._work:
            screen.drawn += 1
            self.pictures += 1
            if screen.number == number:
                screen.stage = STAGES if last else stage + 1
        return True

    def _picture(
        self, renderer: Renderer, seen: Any, size: tuple[int, int], look: Look, unwanted: Callable[[], bool]
    ) -> np.ndarray | None:
        camera, pose = camera_of(seen, *size), pose_of(seen.wxyz, seen.position)
        photo = None
        if look.kind == "error" and self.truth is not None:
            nearest = self.truth(pose)
            if nearest is not None:
                own, pose, photo = nearest
                factor = min(1.0, max(size) / max(own.width, own.height))
                camera = own.resized(max(1, round(own.width * factor)), max(1, round(own.height * factor)))
        view = draw(renderer, self.scene, camera, pose, look, device=self.device, unwanted=unwanted)
        if view is None:
            return None
        if photo is None:
            return picture_of(view, look.kind)
        rows = (np.arange(camera.height) * photo.shape[0]) // camera.height
        columns = (np.arange(camera.width) * photo.shape[1]) // camera.width
        return error_picture(view.colour, photo[rows][:, columns])

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
        seen = screen.client.camera
        canvas = (int(seen.image_width), int(seen.image_height))
        return size_of_stage(screen.stage, canvas, self.speed, self.look.longest, self.most_seconds)

    def _canvas(self, screen: Screen, look: Look) -> tuple[int, int]:
        """The size of the last stage if time did not matter."""
        seen = screen.client.camera
        canvas = (int(seen.image_width), int(seen.image_height))
        return size_of_stage(STAGES - 1, canvas, Speed(1e18), look.longest, 1.0)
