"""Photos of the training views."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raymine.scenes import load_scene
from raymine.scenes.bank import ImageBank, open_bank
from raymine.viewer.photos import Photos
from support.disc_scene import write_scene_of_eight


def test_two_threads_open_the_images_once(tmp_path: Path) -> None:
    scene = load_scene(write_scene_of_eight(tmp_path / "scene"))
    trained = scene.of_split("train")
    opened: list[ImageBank] = []
    start = threading.Barrier(2)

    def open_slowly() -> ImageBank:
        time.sleep(0.1)
        opened.append(open_bank(scene, trained))
        return opened[-1]

    photos = Photos(scene, trained, open_slowly)

    def ask(_: int) -> int:
        start.wait(10)
        return id(photos.images)

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(ask, range(2)))) == 1
    photos.close()
    assert len(opened) == 1
