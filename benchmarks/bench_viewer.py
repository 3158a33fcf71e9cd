"""What `train --view` costs: the time of training steps without a viewer, with nobody connected, and with a client.

    python benchmarks/bench_viewer.py [steps] [rounds] [device]

One run trains `steps` steps in each mode, in turns, for some rounds. So other work on the machine meets all modes
alike. The result is, for each mode, the ratio of its time to that without a viewer: over all rounds, and the median of
the rounds. Times are wall clock and processor time of this process.

The viewer's real server runs all the time. The client is one of viser's in name only: it has a camera, which moves
every two seconds, and drops the pictures. So its time is that of rendering and pacing, without a browser, which would
take cores from training where it runs on the same machine. `open` shows colour, `hard` hard samples.
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

from raymine.experiment import LiveRun, RunResult, SilentObserver, StartInfo, TrainRequest, train
from raymine.listening import Place
from raymine.viewer import LiveViewer
from raymine.viewer.camera import orientation_of
from raymine.viewer.draw import Look
from raymine.viewer.presenter import Presenter

MODES = ("without", "closed", "open", "hard")
WARM_UP = 256
"""Steps before the first round: the first ones of a run march many more samples than later ones."""
IDLE = 10.0
"""Seconds for which the server is watched while nothing is trained."""


class Client:
    """Has a camera of 800x600 pixels, and counts the pictures that are sent to it."""

    client_id = 1

    def __init__(self, pose: np.ndarray) -> None:
        wxyz, position = orientation_of(pose)
        self.camera = SimpleNamespace(wxyz=wxyz, position=position, fov=0.7, image_width=800, image_height=600)
        self.scene, self.sizes = self, list[tuple[int, ...]]()

    def set_background_image(self, image: np.ndarray, **_: Any) -> None:
        self.sizes.append(image.shape[:2])


class Turns(SilentObserver):
    """Lets the modes take turns, and adds up their times. `times[round][mode]` is wall clock and processor time."""

    def __init__(self, viewer: LiveViewer, steps: int) -> None:
        self.viewer, self.steps = viewer, steps
        self.client = Client(np.eye(4)[:3])
        self.times: list[dict[str, tuple[float, float]]] = []
        self.idle = self.moved = 0.0
        self._began, self._first, self._mode = (0.0, 0.0), 0, ""

    @property
    def presenter(self) -> Presenter:
        assert self.viewer.server is not None
        return self.viewer.server.presenter

    def on_start(self, info: StartInfo) -> None:
        assert info.source is not None
        self.viewer.on_start(info)
        self.client = Client(info.source.frames[0].pose)
        begin = time.process_time()
        time.sleep(IDLE)
        self.idle = (time.process_time() - begin) / IDLE

    def on_burst(self, live: LiveRun) -> None:
        if not self._first:
            if live.step >= WARM_UP:
                self._turn(live.step)
            return
        mode = self._mode
        if mode != "without":
            if time.perf_counter() - self.moved > 2:
                self.moved = time.perf_counter()
                self.presenter.moved(self.client)
            self.viewer.on_burst(live)
        if live.step - self._first >= self.steps:
            wall, processors = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
            self.times[-1][mode] = wall, processors
            self._turn(live.step)

    def on_end(self, result: RunResult) -> None:
        self.viewer.on_end(result)

    def _turn(self, step: int) -> None:
        """Begin with the next mode."""
        if not self.times or len(self.times[-1]) == len(MODES):
            self.times.append({})
        # Each round begins with another mode: some work, such as that on the occupancy grid, comes every 16 steps.
        mode = self._mode = MODES[(len(self.times) + len(self.times[-1])) % len(MODES)]
        self.presenter.left(self.client)
        if mode in ("open", "hard"):
            self.presenter.changed(Look("hard" if mode == "hard" else "colour"))
            self.presenter.joined(self.client)
        self._began, self._first = (time.perf_counter(), time.process_time()), step


def main() -> None:
    given = dict(zip(("steps", "rounds", "device"), sys.argv[1:], strict=False))
    steps, rounds, device = int(given.get("steps", 20)), int(given.get("rounds", 10)), given.get("device", "auto")
    turns = Turns(LiveViewer(Place()), steps)
    with tempfile.TemporaryDirectory() as folder:
        total = WARM_UP + (steps if device == "cpu" else steps + 64) * rounds * len(MODES) + 1
        train(
            TrainRequest("builtin", out=Path(folder, "run"), steps=total, evaluate_views=0, device=device),
            observer=turns,
        )
    times = [each for each in turns.times if len(each) == len(MODES)]
    viewer, sizes = turns.viewer, turns.client.sizes
    print(f"{device}, {len(times)} rounds of {steps} steps in each mode")
    print(f"idle server: {100 * turns.idle:.2f} % of one core")
    watched = viewer.seconds_drawn + viewer.seconds_trained
    share = 100 * viewer.seconds_drawn / watched if watched else 0.0
    print(f"{len(sizes)} pictures, up to {max(sizes, default=())}: {share:.1f} % of the time with a client")
    for what, place in (("wall clock", 0), ("processor time", 1)):
        for mode in MODES[1:]:
            whole = sum(each[mode][place] for each in times) / sum(each["without"][place] for each in times)
            median = statistics.median(each[mode][place] / each["without"][place] for each in times)
            print(f"{what}, {mode} / without: {whole:.3f} over all rounds, median {median:.3f}")


if __name__ == "__main__":
    main()
