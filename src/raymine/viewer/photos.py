"""The photos of the training views."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch

from raymine.contracts import Frame, ImageSource, Scene
from raymine.evaluate.views import true_image


class Photos:
    """Photos of the training views, decoded when they are first asked for.

    open_images: opens the images of the frames `trained`, which index `scene.frames`.
    """

    def __init__(self, scene: Scene, trained: tuple[int, ...], open_images: Callable[[], ImageSource]) -> None:
        self.scene, self.trained, self._open = scene, trained, open_images
        self._images: ImageSource | None = None
        self._lock = threading.Lock()

    @property
    def images(self) -> ImageSource:
        """Opened at the first call: by the thread that draws, or by one of the server that shows photos."""
        with self._lock:
            if self._images is None:
                self._images = self._open()
            return self._images

    def nearest(self, pose: np.ndarray, time: float | None = None) -> int:
        """The number of the training view that is nearest to a pose, looks the same way and is close to `time`."""
        frames = [self.scene.frames[i] for i in self.trained]
        poses = np.stack([frame.pose for frame in frames])
        reach = float(np.linalg.norm(poses[:, :, 3], axis=1).mean()) or 1.0
        apart = np.linalg.norm(poses[:, :, 3] - pose[:, 3], axis=1) / reach
        turned = 1.0 - poses[:, :, 2] @ pose[:, 2]
        later = 0.0 if time is None else np.array([abs((frame.time or 0.0) - time) for frame in frames])
        return int((apart + turned + later).argmin())

    def frame(self, number: int) -> Frame:
        """A training view."""
        return self.scene.frames[self.trained[number]]

    def photo(self, number: int) -> np.ndarray:
        """The photo [H, W, 3] in 0..1 of a training view, over the background of the scene."""
        background = torch.tensor(self.scene.background or (0.0, 0.0, 0.0), dtype=torch.float32)
        return true_image(self.images, number, background)[0].numpy()

    def close(self) -> None:
        with self._lock:
            close = getattr(self._images, "close", None)
            if close is not None:
                close()
            self._images = None
