"""Progress output of a run: plain lines and a live bar."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from raymine.experiment import EvalInfo, Event, ProgressObserver, RunResult, StartInfo, StepInfo
from raymine.experiment.prepare import KERNELS


def start(**changes: object) -> StartInfo:
    values: dict[str, object] = {"step": 0, "elapsed": 0.0, "steps": 1000, "max_seconds": None, **changes}
    return StartInfo(Path("runs/[x]-1"), "lego", "ngp", "cpu: test", **values)  # type: ignore[arg-type]


def step(number: int, elapsed: float, psnr: float | None = 25.125) -> StepInfo:
    return StepInfo(number, 0.1, psnr, 100, 16000, 4000, 1e-2, elapsed, 1000, 1_234_000.0)


def shown(observer_mode: str, *, terminal: bool = False) -> tuple[ProgressObserver, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    return ProgressObserver(observer_mode, console), text  # type: ignore[arg-type]


def test_plain_mode_prints_a_step_line_every_ten_seconds(tmp_path: Path) -> None:
    observer, text = shown("auto")
    observer.loading("images", 1, 3)
    observer.loading("images", 3, 3)
    observer.loading(KERNELS, 0, 1)
    observer.compiling()
    observer.on_start(start())
    for number in range(16, 401, 16):
        observer.on_step(step(number, number / 16))
    observer.on_eval(EvalInfo(400, 27.5, 2, 1.0))
    observer.on_event(Event("checkpoint", "step 400 saved", 400))
    observer.on_event(Event("rollback", "parameters set back", 400, "warning"))
    observer.on_end(RunResult(Path("r"), "finished", 0, 1000, 62.5, 0.1, train_psnr=25.0, test_psnr=27.4, wall=71.25))
    assert text.getvalue().splitlines() == [
        "Loaded 3 images",
        "Loading kernels",
        "Compiling kernels for this machine. This happens once and takes a minute or two.",
        "Training ngp for 1000 steps on cpu: test, in runs/[x]-1",
        "step 16  PSNR 25.12 dB on training rays  trains on 25 % of 1.23M samples/s  1:02 left",
        "step 176  PSNR 25.12 dB on training rays  trains on 25 % of 1.23M samples/s  0:52 left",
        "step 336  PSNR 25.12 dB on training rays  trains on 25 % of 1.23M samples/s  0:42 left",
        "step 400  PSNR 27.50 dB on 2 test views",
        "warning: parameters set back",
        "Finished at step 1000 after 62.5 s of training (71.2 s in all), PSNR 27.40 dB on test views",
    ]


def test_held_out_psnr_is_printed_with_the_best_checkpoint() -> None:
    observer, text = shown("plain")
    observer.on_eval(EvalInfo(400, 27.5, 2, 1.0, "held-out", best=True))
    observer.on_eval(EvalInfo(800, 27.25, 1, 1.0, "held-out"))
    result = RunResult(Path("r"), "finished", 0, 800, 62.5, 0.1, held_out_psnr=27.25, best_step=400, wall=70.0)
    observer.on_end(replace(result, best_held_out_psnr=27.5))
    observer.on_end(replace(result, best_step=800, best_held_out_psnr=27.25))
    assert text.getvalue().splitlines() == [
        "step 400  PSNR 27.50 dB on 2 held-out views, best so far",
        "step 800  PSNR 27.25 dB on 1 held-out view",
        "Finished at step 800 after 62.5 s of training (70.0 s in all), PSNR 27.25 dB on held-out views, "
        "best 27.50 dB at step 400",
        "Finished at step 800 after 62.5 s of training (70.0 s in all), PSNR 27.25 dB on held-out views",
    ]


def test_quiet_mode_prints_nothing() -> None:
    observer, text = shown("quiet")
    observer.loading("images", 3, 3)
    observer.loading(KERNELS, 0, 1)
    observer.compiling()
    observer.on_start(start())
    observer.on_step(step(16, 1.0))
    observer.on_event(Event("rollback", "x", 1, "warning"))
    observer.on_eval(EvalInfo(400, 27.5, 2, 1.0))
    observer.on_end(RunResult(Path("r"), "stopped", 130, 16, 1.0, None))
    assert text.getvalue() == ""


def test_live_bar_shows_the_time_budget_and_can_be_closed_twice() -> None:
    observer, text = shown("auto", terminal=True)
    observer.loading("images", 1, 2)
    observer.loading("images", 2, 2)
    observer.on_start(start(steps=None, max_seconds=60.0, step=50, elapsed=10.0))
    observer.on_step(step(66, 12.0, psnr=None))
    observer.close()
    observer.close()
    out = text.getvalue()
    assert "Training ngp for 60 s from step 50" in out
    assert "Loading images" in out


def test_time_left_in_a_step_limited_run_counts_from_the_resume() -> None:
    observer, text = shown("plain")
    # 100 steps since the resume took 10 s and 800 are left; the hour before the resume does not count.
    observer.on_start(start(step=100, elapsed=3600.0))
    observer.on_step(step(200, 3610.0))
    assert "1:20 left" in text.getvalue()


def test_max_useful_steps_are_announced_and_counted_down() -> None:
    observer, text = shown("plain")
    observer.on_start(start(steps=None, max_seconds=60.0, max_useful_steps=400))
    observer.on_step(step(100, 10.0))
    observer.on_step(step(150, 55.0))
    assert text.getvalue().splitlines() == [
        "Training ngp for 60 s, or 400 steps if they come first (more would overfit), on cpu: test, in runs/[x]-1",
        "step 100  PSNR 25.12 dB on training rays  trains on 25 % of 1.23M samples/s  0:30 left",
        "step 150  PSNR 25.12 dB on training rays  trains on 25 % of 1.23M samples/s  0:05 left",
    ]


def test_bar_follows_the_nearer_of_time_and_step_limit() -> None:
    observer, _ = shown("live", terminal=True)
    observer.on_start(start(steps=None, max_seconds=60.0, max_useful_steps=400))
    for info, share in ((step(100, 10.0), 1 / 4), (step(150, 55.0), 55 / 60), (step(400, 58.0), 1.0)):
        observer.on_step(info)
        assert observer._bar.done == pytest.approx(share)
    observer.close()


def test_live_bar_shows_what_matters_most_first() -> None:
    text = io.StringIO()
    observer = ProgressObserver("live", Console(file=text, force_terminal=True, width=80, color_system=None))
    observer.on_start(start())
    observer.on_eval(EvalInfo(90, 27.5, 2, 1.0))
    observer.on_step(step(100, 10.0))
    observer.close()
    assert re.search(r"Training \S+ +1:30 left  step 100  PSNR 25.12 dB tr… 0:00:00", text.getvalue())


def test_share_of_trained_samples_is_left_out_where_all_are() -> None:
    observer, text = shown("plain")
    observer.on_start(start())
    observer.on_step(replace(step(16, 1.0), trained=16000))
    assert "on training rays  1.23M samples/s  1:02 left" in text.getvalue()
