"""Progress of training on stderr: a live bar in a terminal, some plain lines in a log, or nothing."""

from __future__ import annotations

import sys
from functools import partial
from typing import Literal, TextIO, cast

from rich.console import Console
from rich.progress import TimeElapsedColumn

from raymine.kernels.compiling import on_first_compile
from raymine.progress_bar import ProgressBar, text_column
from raymine.rundir import check_target
from raymine.scenes.builtin import builtin_scene
from raymine.scenes.load import BUILTIN
from raymine.step.distributed.ranks import SOLO, Ranks
from raymine.terminal import Messages

from ..observers import EvalInfo, Event, Observer, Observers, SilentObserver, StartInfo, StepInfo
from ..prepare import KERNELS
from ..request import RunResult, TrainRequest
from ..runner import train
from ..stopwatch import Stopwatch
from .pose_watch import in_words

Mode = Literal["auto", "live", "plain", "quiet"]
# Seconds of training between two plain lines.
_PLAIN_PERIOD = 10.0


class ProgressObserver(SilentObserver):
    """Shows step, PSNR, samples/s, the share of samples that is trained on, and time left on stderr.

    mode: "auto" is a live bar in a terminal and plain lines elsewhere. Pass `loading` as `progress` to `train`.
    """

    def __init__(self, mode: Mode = "auto", console: Console | None = None) -> None:
        # In a notebook, rich would make a block of HTML of every line.
        self._console = console or Console(file=cast("TextIO", Messages(sys.stderr)), force_jupyter=False)
        self._mode = mode if mode != "auto" else ("live" if self._console.is_terminal else "plain")
        self._bar = ProgressBar(self._console, text_column(), TimeElapsedColumn())
        self._start: StartInfo | None = None
        self._next_line = 0.0
        self._look = ""

    def loading(self, what: str, done: int, total: int) -> None:
        """Report the loading of images, as a bar or as one line at the end, or that of kernels."""
        if what == KERNELS:
            if done == 0 and self._mode != "quiet":
                self._line("Loading kernels")
        elif self._mode == "live":
            self._bar.show(f"Loading {what}", done, total, f"{done}/{total}")
            if done >= total:
                self._bar.close()
        elif self._mode == "plain" and done == total and total > 0:
            self._line(f"Loaded {total} {what}")

    def compiling(self) -> None:
        """Report that kernels are compiled, because they are not in the cache on disk yet."""
        if self._mode != "quiet":
            self._line("Compiling kernels for this machine. This happens once and takes a minute or two.")

    def on_start(self, info: StartInfo) -> None:
        self._start = info
        limit = f"{info.steps} steps" if info.steps is not None else f"{info.max_seconds:g} s"
        if info.max_useful_steps:
            limit += f", or {info.max_useful_steps} steps if they come first (more would overfit),"
        if self._mode == "quiet":
            return
        since = f" from step {info.step}" if info.step else ""
        self._line(f"Training {info.recipe} for {limit}{since} on {info.device}, in {info.run}")
        if self._mode == "live":
            self._bar.show("Training", self._share(info.step, info.elapsed), 1.0)

    def on_step(self, info: StepInfo) -> None:
        text = self._describe(info)
        if self._mode == "live":
            self._bar.show("Training", self._share(info.step, info.elapsed), 1.0, text)
        elif self._mode == "plain" and info.elapsed >= self._next_line:
            self._next_line = info.elapsed + _PLAIN_PERIOD
            self._line(text)

    def on_event(self, event: Event) -> None:
        if event.level != "info" and self._mode != "quiet":
            self._line(f"{event.level}: {event.message}")

    def on_eval(self, info: EvalInfo) -> None:
        self._look = f"{info.psnr:.2f} dB {info.split}"
        if self._mode == "plain":
            best = ", best so far" if info.best else ""
            views = "view" if info.views == 1 else "views"
            self._line(f"step {info.step}  PSNR {info.psnr:.2f} dB on {info.views} {info.split} {views}{best}")

    def on_end(self, result: RunResult) -> None:
        self._bar.close()
        if self._mode != "quiet":
            told = [
                f"{result.status.capitalize()} at step {result.step} after {result.elapsed:.1f} s of training "
                f"({result.wall:.1f} s in all)"
            ]
            if result.test_psnr is not None:
                told.append(f"PSNR {result.test_psnr:.2f} dB on test views")
            if result.held_out_psnr is not None:
                told.append(f"PSNR {result.held_out_psnr:.2f} dB on held-out views")
            if result.best_held_out_psnr is not None and result.best_step != result.step:
                told.append(f"best {result.best_held_out_psnr:.2f} dB at step {result.best_step}")
            if result.pose_degrees is not None and result.pose_distance is not None:
                told.append(in_words(result.pose_degrees, result.pose_distance))
            self._line(", ".join(told))

    def close(self) -> None:
        """Remove the bar from the screen. Call it if training ends with an error."""
        self._bar.close()

    def _describe(self, info: StepInfo) -> str:
        psnr = "not finite" if info.psnr is None else f"{info.psnr:.2f} dB"
        step, left = f"step {info.step}", f"{_clock(self._seconds_left(info))} left"
        speed = f"{_short(info.samples_per_second)} samples/s"
        if info.trained < info.marched:
            speed = f"trains on {info.trained / info.marched:.0%} of {speed}".replace("%", " %")
        if self._mode == "live":
            # A narrow terminal cuts the end off.
            look = f", {self._look}" if self._look else ""
            return "  ".join((left, step, f"PSNR {psnr} training{look}", speed, *_poses(info)))
        return "  ".join((step, f"PSNR {psnr} on training rays", *_poses(info), speed, left))

    def _seconds_left(self, info: StepInfo) -> float | None:
        start = self._start
        if start is None:
            return None
        done, seconds = info.step - start.step, info.elapsed - start.elapsed
        left = [] if start.max_seconds is None else [start.max_seconds - info.elapsed]
        if start.last_step and done > 0 and seconds > 0:
            left.append((start.last_step - info.step) * seconds / done)
        return max(0.0, min(left)) if left else None

    def _share(self, step: int, elapsed: float) -> float:
        start = self._start
        if start is None:
            return 0.0
        by_time = elapsed / start.max_seconds if start.max_seconds else 0.0
        return min(1.0, max(by_time, step / start.last_step if start.last_step else 0.0))

    def _line(self, text: str) -> None:
        # Paths may contain brackets, which are not markup, and must not be wrapped.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _poses(info: StepInfo) -> tuple[str, ...]:
    """The mean correction of the poses in words, if they are refined."""
    if not {"pose_degrees", "pose_distance"} <= info.extra.keys():
        return ()
    return (in_words(info.extra["pose_degrees"], info.extra["pose_distance"]),)


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.2f}{unit}"
    return f"{value:.0f}"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def train_with_progress(
    request: TrainRequest,
    observer: Observer,
    console: Console | None = None,
    watch: Stopwatch | None = None,
    ranks: Ranks = SOLO,
) -> RunResult:
    """Train as `runner.train` does, with progress on stderr. observer: told first, before the bar. watch, ranks: as
    there."""
    bar, watch = ProgressObserver(console=console), watch or Stopwatch()
    try:
        with on_first_compile(bar.compiling, request.device):
            if request.scene == BUILTIN:
                if request.out is not None and not ranks.active:
                    check_target(request.out, resume=request.resume)
                # The first use generates this scene, which takes seconds. Done here, it has a progress bar.
                with watch.stage("scene"):
                    builtin_scene(progress=partial(bar.loading, "views of the built-in scene"))
            return train(request, observer=Observers([observer, bar]), progress=bar.loading, watch=watch, ranks=ranks)
    finally:
        bar.close()
