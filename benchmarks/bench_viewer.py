"""What `train --view` costs: wall clock of the same steps without a viewer, with nobody connected, and with a client.

    python benchmarks/bench_viewer.py [steps] [device]

The client is one of viser's in name only: it has a camera, which moves every two seconds, and drops the pictures. So
the time is that of rendering and pacing, without a browser that takes cores from training, and without viser.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from raymine.experiment import LiveRun, Observers, SilentObserver, StartInfo, TrainRequest, train
from raymine.listening import Place
from raymine.viewer import live
from raymine.viewer.camera import orientation_of
from raymine.viewer.presenter import Presenter

MODES = ("without", "closed", "open")


class Client:
    """Has a camera of 800x600 pixels, and counts the pictures that are sent to it."""

    client_id = 1

    def __init__(self, pose: np.ndarray) -> None:
        wxyz, position = orientation_of(pose)
        self.camera = SimpleNamespace(wxyz=wxyz, position=position, fov=0.7, image_width=800, image_height=600)
        self.scene, self.sizes = self, list[tuple[int, ...]]()

    def set_background_image(self, image: np.ndarray, **_: Any) -> None:
        self.sizes.append(image.shape[:2])


class Server:
    """Stands for `viewer.ViewServer`."""

    def __init__(self, place: Place, door: Any, scene: Any, device: Any, run: Path, **options: Any) -> None:
        self.presenter = Presenter(scene, device, most_seconds=options["most_seconds"])
        self.panel = SimpleNamespace(tell=lambda text: None)

    def stop(self) -> None:
        return None


class Watch(SilentObserver):
    """Connects the client, moves its camera, and takes the time."""

    def __init__(self, viewer: live.LiveViewer | None) -> None:
        self.viewer, self.client = viewer, None if viewer is None else Client(np.eye(4)[:3])
        self.began = self.ended = self.moved = 0.0

    def on_start(self, info: StartInfo) -> None:
        if self.viewer is not None and self.viewer.server is not None and info.source is not None:
            self.client = Client(info.source.frames[0].pose)
            self.viewer.server.presenter.joined(self.client)
        self.began = time.perf_counter()

    def on_burst(self, live: LiveRun) -> None:
        now = time.perf_counter()
        if self.viewer is not None and self.viewer.server is not None and now - self.moved > 2:
            self.moved = now
            self.viewer.server.presenter.moved(self.client)
        self.ended = now


def measure(mode: str, steps: int, device: str) -> float:
    """Train, print what it took, and return the wall clock in seconds."""
    viewer = None if mode == "without" else live.LiveViewer(Place())
    watch = Watch(viewer if mode == "open" else None)
    with tempfile.TemporaryDirectory() as folder:
        request = TrainRequest("builtin", out=Path(folder, "run"), steps=steps, evaluate_views=0, device=device)
        train(request, observer=Observers([*([] if viewer is None else [viewer]), watch]))
    if viewer is not None:
        viewer.close()
    wall = watch.ended - watch.began
    told = f"{device}, {steps} steps, {mode}: {wall:.2f} s"
    if watch.client is not None and viewer is not None and watch.client.sizes:
        sizes = watch.client.sizes
        told += f", {viewer.seconds_drawn:.2f} s of it for {len(sizes)} pictures, from {sizes[0]} to {max(sizes)}"
    print(told, flush=True)
    return wall


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    device = sys.argv[2] if len(sys.argv) > 2 else "auto"
    # No viser: the server's part is that of a stand-in.
    live.ViewServer = Server  # type: ignore[assignment,misc]
    live.require_viser = lambda: None
    best = {mode: min(measure(mode, steps, device) for _ in range(2)) for mode in MODES}
    print(", ".join(f"{mode} / without: {best[mode] / best['without']:.3f}" for mode in MODES[1:]))


if __name__ == "__main__":
    main()
