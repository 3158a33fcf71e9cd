"""A client of the viewer without a browser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from raymine.viewer.camera import orientation_of


class FakeClient:
    """Has a camera, and keeps the pictures that are sent to it."""

    def __init__(self, pose: np.ndarray, *, number: int = 1, width: int = 80, height: int = 60) -> None:
        wxyz, position = orientation_of(pose)
        self.client_id = number
        self.camera = SimpleNamespace(
            wxyz=wxyz, position=position, fov=0.7, image_width=width, image_height=height, aspect=width / height
        )
        self.scene = self
        self.pictures: list[np.ndarray] = []

    def set_background_image(self, image: np.ndarray, **_: Any) -> None:
        self.pictures.append(image)
