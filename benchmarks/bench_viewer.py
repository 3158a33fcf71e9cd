"""What `train --view` costs: the time of the same steps without a viewer, with nobody connected, and with a client.

    python benchmarks/bench_viewer.py [steps] [rounds] [device]

Each round trains once in each mode, one after the other, so that other work on the machine meets all modes alike. The
result is the median over rounds of the ratio within a round, of wall clock and of processor time.

`closed` has the viewer's real server. `open` and `hard` have a client in name only: it has a camera, which moves every
two seconds, and drops the pictures. So their time is that of rendering and pacing, without a browser, which would take
cores from training where it runs on the same machine. `hard` shows hard samples, `open` colour.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from raymine.experiment import LiveRun, Observers, SilentObserver, StartInfo, TrainRequest, train
from raymine.listening import Place
from raymine.viewer import ViewServer, live
from raymine.viewer.camera import orientation_of
from raymine.viewer.draw import Look
from raymine.viewer.presenter import Presenter

MODES = ("without", "closed", "open", "hard")


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
        self.presenter = Presenter(scene, device, most_seconds=options["most_seconds"], photos=options["photos"])
        self.panel = SimpleNamespace(tell=lambda *paragraphs: None)

    def stop(self) -> None:
        return None


class Watch(SilentObserver):
    """Connects the client, moves its camera, and takes the time: wall clock and processor time."""

    def __init__(self, viewer: live.LiveViewer | None, look: Look) -> None:
        self.viewer, self.look, self.client = viewer, look, None if viewer is None else Client(np.eye(4)[:3])
        self.began = self.ended = (0.0, 0.0)
        self.moved = 0.0

    def on_start(self, info: StartInfo) -> None:
        if self.viewer is not None and self.viewer.server is not None and info.source is not None:
            self.client = Client(info.source.frames[0].pose)
            self.viewer.server.presenter.changed(self.look)
            self.viewer.server.presenter.joined(self.client)
        self.began = time.perf_counter(), time.process_time()

    def on_burst(self, live: LiveRun) -> None:
        now = time.perf_counter()
        if self.viewer is not None and self.viewer.server is not None and now - self.moved > 2:
            self.moved = now
            self.viewer.server.presenter.moved(self.client)
        self.ended = now, time.process_time()


def measure(mode: str, steps: int, device: str) -> tuple[float, float]:
    """Train, print what it took, and return the seconds of wall clock and of all processors."""
    # viser has no client here, so a stand-in takes its place where somebody looks.
    live.ViewServer = ViewServer if mode == "closed" else Server  # type: ignore[assignment,misc]
    viewer = None if mode == "without" else live.LiveViewer(Place())
    watch = Watch(viewer if mode in ("open", "hard") else None, Look("hard" if mode == "hard" else "colour"))
    with tempfile.TemporaryDirectory() as folder:
        request = TrainRequest("builtin", out=Path(folder, "run"), steps=steps, evaluate_views=0, device=device)
        train(request, observer=Observers([*([] if viewer is None else [viewer]), watch]))
    if viewer is not None:
        viewer.close()
    wall, processors = (ended - began for began, ended in zip(watch.began, watch.ended, strict=True))
    told = f"{device}, {steps} steps, {mode}: {wall:.2f} s, {processors:.2f} s of processor time"
    if watch.client is not None and viewer is not None and watch.client.sizes:
        sizes = watch.client.sizes
        told += f", {viewer.seconds_drawn:.2f} s of it for {len(sizes)} pictures, from {sizes[0]} to {max(sizes)}"
    print(told, flush=True)
    return wall, processors


def main() -> None:
    given = dict(zip(("steps", "rounds", "device"), sys.argv[1:], strict=False))
    steps, rounds, device = int(given.get("steps", 300)), int(given.get("rounds", 5)), given.get("device", "auto")
    # The first training compiles kernels, and reads the scene.
    measure("without", 2, device)
    times = [{mode: measure(mode, steps, device) for mode in MODES} for _ in range(rounds)]
    for what, place in (("wall clock", 0), ("processor time", 1)):
        for mode in MODES[1:]:
            ratios = sorted(each[mode][place] / each["without"][place] for each in times)
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            print(f"{what}, {mode} / without: {statistics.median(ratios):.3f} ({spread}, {rounds} rounds)")


if __name__ == "__main__":
    main()
