"""Figures derived from runs of the mining benchmark, against hand-computed values: speed-ups, curves, loss ratios."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raymine.bench.derive import (
    SHARES,
    Curve,
    binned_loss,
    curve_of,
    loss_ratio,
    mean_curve,
    reached,
    speedup,
    summarise_policies,
)
from raymine.bench.records import Trace
from support.bench_records import made_up_run


def curve(*points: tuple[float, float]) -> Curve:
    seconds, psnr = np.array(points, dtype=float).T
    return Curve(seconds, psnr)


def test_speedup_is_budget_over_time_to_reach_final_baseline_psnr() -> None:
    baseline = [curve((1, 10), (2, 20), (4, 28)), curve((1, 10), (2, 20), (4, 32))]
    # The mean of the two curves passes 30 dB half way between its second and its third point.
    own = [curve((1, 20), (2, 24), (3, 34), (4, 35)), curve((1, 20), (2, 26), (3, 36), (4, 37))]
    found = speedup(own, baseline, 4.0, ("hard", "none"))
    assert found.target == pytest.approx(30)
    assert found.reached == pytest.approx(2.5)
    assert found.factor == pytest.approx(4 / 2.5)
    assert found.seeds == (pytest.approx(4 / 2.6), pytest.approx(4 / 2.4))
    assert found.note == "hard reaches the 30.00 dB that none has after 4 s in 2.5 s."


def test_speedup_is_none_with_a_note_if_baseline_psnr_is_never_reached() -> None:
    found = speedup([curve((1, 10), (4, 29))], [curve((1, 10), (4, 30))], 4.0, ("prune", "none"))
    assert (found.factor, found.reached, found.seeds) == (None, None, (None,))
    assert found.note == "prune never reaches the 30.00 dB that none has after 4 s; its best is 29.00 dB."


def test_speedup_is_lower_bound_if_target_is_reached_before_first_evaluation() -> None:
    found = speedup([curve((1, 40), (4, 50))], [curve((1, 10), (4, 30))], 4.0, ("hard", "none"))
    assert found.factor == pytest.approx(4.0)
    assert "lower bound" in found.note
    assert reached(curve((1, 3), (2, 3)), 3.0) == 1.0


def test_speedup_of_baseline_is_one_even_if_its_psnr_peaked_early() -> None:
    peaked = [curve((1, 10), (2, 31), (4, 30))]
    assert speedup(peaked, peaked, 4.0, ("none", "none")).factor == 1.0


def test_curve_is_interpolated_at_scheduled_times_from_first_evaluation_on() -> None:
    run = made_up_run("none", 0, [float(i) for i in range(12)])
    late = replace(run, looks=tuple(replace(look, seconds=look.seconds + 0.02) for look in run.looks))
    found = curve_of(late, 8.0)
    assert found.seconds.tolist() == [pytest.approx(8 * share) for share in SHARES]
    # Evaluations are 0.02 s late where PSNR rises by 1 dB/s: 0.02 dB less at the scheduled time.
    assert found.psnr[-1] == pytest.approx(11 - 0.02, abs=1e-6)
    first_missing = replace(run, looks=run.looks[3:])
    assert curve_of(first_missing, 8.0).seconds[0] == pytest.approx(8 * SHARES[3])
    both = mean_curve([curve_of(run, 8.0), curve_of(first_missing, 8.0)])
    assert both.seconds[0] == pytest.approx(8 * SHARES[3])


def test_loss_ratio_compares_equal_steps_for_any_block_boundaries() -> None:
    none = Trace(step=(10, 20, 40), loss=(4.0, 2.0, 1.0))
    assert binned_loss(none, np.array([0, 10, 30, 40])).tolist() == pytest.approx([4.0, 1.5, 1.0])
    base, own = (replace(made_up_run(name, 0, [1.0] * 12), trace=none) for name in ("none", "hard"))
    own = replace(own, trace=Trace(step=(5, 25, 30), loss=(2.0, 1.4, 0.5)))
    found = loss_ratio([own], [base])
    assert found is not None
    assert found.step[-1] == pytest.approx(29.5)
    assert found.ratio[[0, 7, -1]] == pytest.approx([0.5, 0.35, 0.5])


def test_a_summary_holds_means_and_ranges_over_seeds() -> None:
    ramp = [float(i) for i in range(12)]
    runs = [made_up_run("none", 0, ramp), made_up_run("none", 1, [p + 2 for p in ramp], loss=3.0)]
    hard = made_up_run("hard", 0, [p + 6 for p in ramp], loss=1.0)
    none, mined = summarise_policies([*runs, hard], ("none", "prune", "hard"), 8.0)
    assert none.psnr_end is not None
    assert (none.psnr_end.mean, none.psnr_end.low, none.psnr_end.high) == (12.0, 11.0, 13.0)
    assert none.psnr_quarter is not None
    assert none.psnr_quarter.mean == 6.0
    assert mined.memory_saved.mean == pytest.approx(0.75)
    assert mined.loss_ratio_vs_none == pytest.approx(0.5)
    assert mined.speedup_vs_prune is None
    assert mined.speedup_vs_none is not None
    # The ramp plus 6 reaches 12 dB at its value 6, the seventh evaluation.
    assert mined.speedup_vs_none.factor == pytest.approx(1 / SHARES[6])
