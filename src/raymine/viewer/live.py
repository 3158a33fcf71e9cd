"""`raymine train --view`: show a run while it trains, for a small share of the time.

Pictures are drawn between two bursts of steps, on the training thread, when no step is under way and the training clock
stands still. A picture is drawn only if training has earned its time (`pacing.Budget`). Without a client nothing is
drawn, and nothing else is done.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from raymine.contracts import Renderer
from raymine.errors import RaymineError
from raymine.experiment import LiveRun, RunResult, SilentObserver, StartInfo, StepInfo
from raymine.experiment.memory import is_out_of_memory
from raymine.listening import Place, listen
from raymine.scenes.bank import open_bank

from .pacing import Budget, Pace
from .photos import Photos
from .presenter import Model
from .server import ViewServer, address_of, require_viser
from .things import occupied_points

SHARE = 0.05
"""Of the time, for pictures. The server's own threads take a little more."""

_LONGEST = 1.0
"""Seconds of training that one picture may stop."""

_TELL = 0.5
"""Seconds between two lines of progress in the panel."""


class LiveViewer(SilentObserver):
    """Shows a run that trains. The server starts with the run and stops with it.

    seconds_drawn, seconds_trained: what was spent while somebody was connected. seconds_delayed: the part of the
    training time by which pictures delayed the steps after them; it is charged like drawing.
    """

    def __init__(self, place: Place) -> None:
        """Listen at `place` already, so that a port that is in use is an error before anything is trained."""
        require_viser()
        self._place, self._door = place, listen(place)
        self.url = address_of(place, self._door)
        self._budget, self._pace = Budget(SHARE), Pace()
        self._server: ViewServer | None = None
        self._renderer: Renderer | None = None
        self._since, self._step = 0.0, 0
        self._drawn = False
        self._spoke = 0.0
        self._line = self._problem = ""
        self.seconds_drawn = self.seconds_trained = self.seconds_delayed = 0.0

    @property
    def server(self) -> ViewServer | None:
        """The server, while the run trains."""
        return self._server

    def on_start(self, info: StartInfo) -> None:
        scene = info.source
        if scene is None:
            return
        device = torch.device(info.device.partition(":")[0])
        photos = Photos(scene, info.trained, lambda: open_bank(scene, info.trained))
        self._server = ViewServer(
            self._place,
            self._door,
            scene,
            device,
            info.run,
            photos=photos,
            occupied=self._occupied,
            most_seconds=_LONGEST,
        )
        self._since, self._step = time.perf_counter(), info.step

    def on_burst(self, live: LiveRun) -> None:
        server, now = self._server, time.perf_counter()
        taken, steps, after_picture = now - self._since, live.step - self._step, self._drawn
        self._step, self._drawn = live.step, False
        if server is None or not server.presenter.watched:
            self._since = now
            return
        delay = self._pace.delay(taken, steps, after_picture=after_picture)
        self._budget.earn(taken - delay)
        self._budget.spend(delay)
        self.seconds_trained += taken
        self.seconds_delayed += delay
        presenter = server.presenter
        presenter.model_changed()
        cost = presenter.cost()
        if cost is not None and self._budget.affords(cost):
            begin = time.perf_counter()
            try:
                # On a GPU the first one allocates hundreds of megabytes.
                self._renderer = live.renderer()
                presenter.draw_next(Model(self._renderer, live.hard_view))
                self._problem = ""
            except (RaymineError, OSError, RuntimeError) as error:
                # A picture may not end the training: say why there is none, and draw the next one that is asked for.
                if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                    raise
                self._problem = f"This view could not be drawn: {error}"
            spent = time.perf_counter() - begin
            self._budget.spend(spent)
            self.seconds_drawn += spent
            self._drawn = True
        self._say(server, live)
        self._since = time.perf_counter()

    def on_step(self, info: StepInfo) -> None:
        if info.psnr is not None:
            self._line = f", PSNR {info.psnr:.2f} dB on training rays"

    def on_end(self, result: RunResult) -> None:
        self.close(f"**Training has ended** at step {result.step}. Afterwards: `raymine view {result.run}`")

    def close(self, words: str = "Training has ended.") -> None:
        """Stop the server; its pages show `words`. Also called if training ends with an error."""
        if self._server is not None:
            self._server.stop(words)
            self._server = None
        self._door.close()

    def _occupied(self) -> np.ndarray | None:
        """The occupied cells of the model in training. Called on a thread of the server, when a client asks for them.

        A step may change the grid meanwhile: some cells are then those of before, and some those of after it.
        """
        return None if self._renderer is None else occupied_points(self._renderer)

    def _say(self, server: ViewServer, live: LiveRun) -> None:
        now = time.perf_counter()
        if now - self._spoke < _TELL:
            return
        self._spoke = now
        share = f"{100 * SHARE:.0f} % of the time goes to this view"
        line = f"**Training**, step {live.step}, {live.elapsed:.0f} s{self._line}. {share}."
        server.panel.tell(line, server.presenter.caption, self._problem)
