"""The rules by which a trial is stopped, on looks written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from raymine.pipeline.prune import Look, Other, Prune, looks_of, others_of


def looks(*scores: float) -> tuple[Look, ...]:
    return tuple(Look(10 * (i + 1), score) for i, score in enumerate(scores))


def test_median_compares_the_best_look_with_finished_trials_at_the_same_look() -> None:
    rule = Prune("median", from_look=2, min_trials=3)
    others = [Other(looks(10, 20, 30), True), Other(looks(10, 22, 30), True), Other(looks(10, 24, 30), True)]
    assert rule.reason(looks(5), others) == "", "before from_look"
    assert rule.reason(looks(5, 21.9), others) == "21.90 dB is below the median 22.00 dB of 3 trials"
    assert rule.reason(looks(5, 22), others) == ""
    assert rule.reason(looks(23, 1), others) == "", "its best look counts"
    assert rule.reason(looks(5, 1), others[:2]) == "", "too few trials"
    assert rule.reason(looks(5, 1), [*others[:2], Other(looks(10, 24), False)]) == "", "one has not finished"


def test_halving_lets_the_best_share_pass_each_rung() -> None:
    rule = Prune("halving", from_look=1, factor=2)
    others = [Other(looks(10), False), Other(looks(12, 20), False), Other(looks(14, 22), True)]
    assert rule.reason(looks(13), others) == ""
    assert rule.reason(looks(11), others) == "11.00 dB is not among the best 2 of 4 trials"
    assert rule.reason(looks(13, 21), others), "the second look is a rung"
    assert rule.reason(looks(13, 23), others) == ""
    assert rule.reason(looks(13, 23, 0), others) == "", "the third is none"
    assert rule.reason(looks(1), []) == ""


def write(folder: Path, scores: list[float | None]) -> None:
    folder.mkdir(parents=True)
    rows = [{"kind": "eval", "split": "held-out", "step": i, "psnr": score} for i, score in enumerate(scores)]
    rows += [{"kind": "train", "step": 9, "psnr": 1.0}, {"kind": "eval", "split": "test", "step": 9, "psnr": 50.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_looks_of_other_trials_come_from_their_logs(tmp_path: Path) -> None:
    for name, scores in (("0", [1.0, None, 2.0]), ("1", [3.0]), ("2", [4.0]), ("3", [5.0])):
        write(tmp_path / f"trial-000{name}/train-x", scores)
    for name, pruned in (("0", None), ("1", {"step": 0})):
        record = tmp_path / f"trial-000{name}/stages/train.json"
        record.parent.mkdir()
        record.write_text(json.dumps({"result": {"run": "elsewhere/train-x", "pruned": pruned}}))
    (tmp_path / "trial-0004").mkdir()
    assert [look.psnr for look in looks_of(tmp_path / "trial-0000/train-x")] == [1.0, 2.0]
    found = others_of(tmp_path / "trial-0003")
    assert [(other.finished, other.looks[0].psnr) for other in found] == [(True, 1.0), (False, 3.0), (False, 4.0)]
