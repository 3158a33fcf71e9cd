"""The page of a sweep: complete, self-contained, readable on a phone and in the dark, also when little has finished."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from raymine.pipeline.prune import Prune
from raymine.pipeline.sweep import Row, Trial
from raymine.pipeline.sweep_report import page as module
from raymine.pipeline.sweep_report.page import PAGE, RESULTS, render_page, write_results
from raymine.pipeline.sweep_spec import Range, Sweep
from support.browser import browser

SPACE = {"optimiser.lr": Range(1e-3, 1e-1, log=True), "field.grid.levels": Range(8, 16), "mining": ["none", "hard<b>"]}


def made(folder: Path, count: int = 12, seeds: tuple[int, ...] = (0,)) -> tuple[Sweep, list[Row]]:
    """A sweep with finished, pruned and failed points, best first."""
    out = folder / "an <out> of a sweep"
    sweep = Sweep(
        Path("levels.toml"), out, "/data/lego", {"steps": 800, "hold_out": 4}, (), frozenset(("mining",)), seeds,
        "held_out_psnr", 1, {}, prune=Prune("median"), search="optuna", space=SPACE, trials=count,
    )  # fmt: skip
    out.mkdir()
    rows = [_row(out, i, seeds) for i in range(count)]
    return sweep, sorted(rows, key=lambda row: -(row.score or 0.0))


def _row(out: Path, i: int, seeds: tuple[int, ...]) -> Row:
    settings = {
        "optimiser.lr": 10 ** (-3 + 2 * (i * 0.37 % 1)),
        "field.grid.levels": 8 + i * 5 % 9,
        "mining": SPACE["mining"][i % 2],
    }
    best = 31 - (math.log10(settings["optimiser.lr"]) + 2) ** 2 - 0.1 * abs(settings["field.grid.levels"] - 12)
    trials = []
    for place, seed in enumerate(seeds):
        name = f"trial-{i * len(seeds) + place:04d}"
        run = out / name / "train-1"
        run.mkdir(parents=True)
        ends = 300 if i % 5 == 3 else 800
        rows = [
            {"kind": "eval", "split": "held-out", "step": step, "psnr": best + seed - 8 * math.exp(-step / 200)}
            for step in range(100, ends + 1, 100)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        result: dict[str, Any] = {"run": str(run), "elapsed": 12.5 + i}
        if i == 7:
            trials.append(Trial(name, settings, seed, "failed", "exit code 1", None, {}))
        elif ends == 300:
            stop = {"step": 300, "psnr": rows[-1]["psnr"], "why": "below the median"}
            trials.append(Trial(name, settings, seed, "done", "", None, {**result, "pruned": stop}))
        else:
            trials.append(Trial(name, settings, seed, "done", "", best + seed, result))
    scores = [trial.score for trial in trials if trial.score is not None]
    spread = 0.7 if len(scores) > 1 else None
    return Row(settings, sum(scores) / len(scores) if scores else None, spread, tuple(trials))


def test_page_has_every_trial_and_says_what_is_best(tmp_path: Path) -> None:
    sweep, rows = made(tmp_path)
    document = write_results(sweep, rows, ok=False)
    assert json.loads((sweep.out / RESULTS).read_text()) == json.loads(json.dumps(document))
    text = (sweep.out / PAGE).read_text()
    for row in rows:
        assert f'<th scope="row">{row.trials[0].name}</th>' in text
    assert "9 of 12 points have finished, 2 were pruned, 1 failed." in text
    assert "pruned at step 300" in text
    assert f"with {rows[0].score:.2f} dB on the held-out views" in text
    run = rows[0].trials[0].result["run"]
    assert f"raymine eval &#x27;{run.replace('<', '&lt;').replace('>', '&gt;')}&#x27;" in text
    # What users typed is text, not markup.
    assert "hard&lt;b&gt;" in text
    assert "<b>" not in text
    for name in ("by-trial", "by-look", "setting-0", "setting-1", "setting-2"):
        assert f'id="{name}"' in text
    assert len(re.findall("<svg", text)) == 5
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_several_seeds_are_shown_with_their_spread(tmp_path: Path) -> None:
    text = render_page(*made(tmp_path, 4, (0, 1)))
    assert "the mean over 2 seeds" in text
    assert "less than the spread over seeds" in text
    assert '<th scope="row">trial-0002 to 0003</th>' in text


def test_sweep_without_a_score_has_a_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, rows = made(tmp_path)
    nothing = [Row(row.settings, None, None, tuple(_unreached(trial) for trial in row.trials)) for row in rows]
    for some in ([], nothing):
        text = render_page(sweep, some)
        assert "No point has a score yet" in text
        assert "<svg" not in text
    assert "12 were not reached" in text
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    assert "they need matplotlib" in render_page(sweep, rows)


def _unreached(trial: Trial) -> Trial:
    return Trial(trial.name, trial.settings, trial.seed, "waiting", "", None, {})


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (390, True)])
def test_page_fits_the_screen_and_fetches_nothing(width: int, dark: bool, tmp_path: Path) -> None:
    sweep, rows = made(tmp_path)
    write_results(sweep, rows, ok=True)
    with browser() as shown:
        shown.open((sweep.out / PAGE).as_uri(), width=width, height=2400, dark=dark)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.evaluate("document.querySelectorAll('#trials tbody tr').length") == 12
        assert shown.evaluate("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 200)")
        assert not shown.fetched()
        picture = shown.picture()
    assert (picture.mean() < 100) == dark
    assert picture.std() > 10
