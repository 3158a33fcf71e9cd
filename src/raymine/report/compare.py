"""Several runs beside each other: the settings in which they differ, then their results."""

from __future__ import annotations

from collections.abc import Sequence

from raymine.quantities import duration, size

from . import words
from .record import RunRecord

ABSENT = "–"

Rows = list[tuple[str, ...]]


def differing_settings(runs: Sequence[RunRecord]) -> Rows:
    """One row for each setting in which the runs differ: its name, and its value in each run."""
    settings = [run.setting_values for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    rows = [(name, *(each.get(name, ABSENT) for each in settings)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def results(runs: Sequence[RunRecord]) -> Rows:
    """One row for each result: its name, and its value in each run."""

    def step_time(run: RunRecord) -> str:
        return words.number(1e3 * run.manifest.elapsed / run.manifest.step if run.manifest.step else None)

    columns = {
        "state": [run.status for run in runs],
        "test PSNR (dB)": [words.number(run.psnr) for run in runs],
        "test SSIM": [words.number(run.scores.ssim if run.scores else None, 4) for run in runs],
        "scores from": ["eval" if run.scores else "quick look" for run in runs],
        "training PSNR (dB)": [words.number(run.manifest.train_psnr) for run in runs],
        "steps": [f"{run.manifest.step:,}" for run in runs],
        "training time": [duration(run.manifest.elapsed) for run in runs],
        "wall clock": [ABSENT if run.wall is None else duration(run.wall) for run in runs],
        "ms / step": [step_time(run) for run in runs],
        "trained / marched samples": [
            ABSENT if run.mean_share is None else words.percent(run.mean_share) for run in runs
        ],
        "peak host memory": [size(run.memory["host"]) if "host" in run.memory else ABSENT for run in runs],
        "peak device memory": [size(run.memory["device"]) if "device" in run.memory else ABSENT for run in runs],
        "checkpoint": [size(run.checkpoint_bytes) for run in runs],
        "device": [words.device(run) for run in runs],
    }
    return [(name, *values) for name, values in columns.items() if set(values) != {ABSENT}]


def lead(runs: Sequence[RunRecord]) -> str:
    """The comparison in a sentence."""
    known = [(run.psnr, run) for run in runs if run.psnr is not None]
    if len(known) < 2:
        return "Too few of these runs have a score on test views to compare them."
    best = max(known, key=lambda pair: pair[0])
    worst = min(known, key=lambda pair: pair[0])
    quick = sorted({run.label for run in runs if run.scores is None})
    note = f" Scores of {', '.join(quick)} are quick evaluations of some pixels." if quick else ""
    scenes = {run.manifest.scene_digest for run in runs}
    other = " They were trained on different scenes, so their scores do not compare." if len(scenes) > 1 else ""
    return (
        f"The best test PSNR is that of {best[1].label}, {best[0]:.2f} dB; the lowest that of {worst[1].label}, "
        f"{worst[0]:.2f} dB.{note}{other}"
    )
