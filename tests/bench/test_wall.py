"""The wall-clock benchmark: its rows, the stages of training, and processes that fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from raymine.bench import WallRequest, bench_wall, wall
from raymine.cli.app import main
from raymine.errors import ConfigError, RunError
from raymine.experiment import TrainRequest, train
from support.disc_scene import write_scene_of_eight


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that were run. Only `train` does its work, in this process, and every one takes 100 s."""
    seen: list[list[str]] = []

    def run(line: Sequence[str | Path]) -> float:
        words = [str(part) for part in line]
        seen.append(words)
        if "train" in words:
            train(TrainRequest(words[words.index("train") + 1], steps=2, device="cpu", out=Path(words[-1])))
        return 100.0

    monkeypatch.setattr(wall, "_time", run)
    return seen


def test_every_command_has_a_row_and_the_stages_of_train_sum_to_its_seconds(
    tmp_path: Path, lines: list[list[str]]
) -> None:
    scene, out = write_scene_of_eight(tmp_path / "scene"), tmp_path / "rows.jsonl"
    rows = bench_wall(WallRequest(scene, device="cpu", repeats=2, frames=5, out=out))
    commands = ["floor", "train", "eval", "render"]
    assert [(row.command, row.repeat) for row in rows] == [(name, i) for i in range(2) for name in commands]
    for row in rows:
        assert row.seconds == 100.0
        assert row.recipe == ("auto" if row.command == "floor" else "ngp")
        if row.command == "train":
            assert {"scene", "images", "model", "kernels", "training", "checkpoints", "exit"} <= row.stages.keys()
            assert sum(row.stages.values()) == pytest.approx(100.0, abs=0.05)
            assert row.first_step is not None
            assert 0 < row.first_step < 100
        else:
            assert (row.stages, row.first_step) == ({}, None)
    assert [json.loads(line)["command"] for line in out.read_text().splitlines()] == commands * 2
    assert lines[3][-2:] == ["--frames", "5"]
    assert not Path(lines[1][-1]).exists(), "the runs are temporary"


def test_table_shows_the_first_time_and_the_median_of_later_ones(
    tmp_path: Path, lines: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    scene = write_scene_of_eight(tmp_path / "scene")
    assert main(["bench", "wall", str(scene), "--device", "cpu", "--repeats", "1", "--frames", "0"]) == 0
    printed = capsys.readouterr().out
    assert "until the first step" in printed
    assert "raymine render" not in printed
    assert "100.00" in printed


def test_process_that_fails_is_reported_with_its_words() -> None:
    with pytest.raises(RunError, match=r"ended with code 3: no such luck"):
        wall._time([sys.executable, "-c", "import sys; print('no such luck', file=sys.stderr); sys.exit(3)"])
    assert 0 < wall._time([sys.executable, "-c", "pass"]) < 60


@pytest.mark.parametrize(
    ("wrong", "words"), [({"seconds": 0.0}, "seconds"), ({"repeats": 0}, "repeats"), ({"frames": -1}, "frames")]
)
def test_impossible_requests_are_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WallRequest("scene", **wrong)  # type: ignore[arg-type]
