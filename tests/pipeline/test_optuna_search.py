"""Points that Optuna chooses: they repeat, survive a kill, are told once, and get better than random ones."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raymine.cli import main
from raymine.errors import RunError
from raymine.pipeline import run
from raymine.pipeline.optuna_search import STUDY, OptunaSearch, asked_points
from raymine.pipeline.prune import Look
from raymine.pipeline.sweep_spec import Point, Range, Sweep
from support.disc_scene import write_scene_of_eight
from support.in_this_process import InThisProcess

optuna = pytest.importorskip("optuna", reason="needs the package optuna (extra `optuna`)")

TESTS = Path(__file__).parents[1]
# With a seed, and less than `n_startup_trials` of Optuna, every point is a random one.
FILE = """scene = "a"
out = "o"
search = "optuna"
trials = 5
[train]
recipe = "support.runs:tiny"
steps = {steps}
device = "cpu"
threads = 1
hold_out = 2
[space]
optimiser.lr = {{low = 1e-3, high = 1e-1, log = true}}
batch.samples = {{low = 256, high = 300}}
mining = ["none", "prune"]
"""


SPACE = {"x": Range(-4.0, 4.0), "n": Range(1, 64, log=True), "kind": ["a", [1, 2], True]}


def spec(out: Path, trials: int = 30, seed: int = 0, **changes: Any) -> Sweep:
    out.mkdir(exist_ok=True)
    sweep = Sweep(Path("s.toml"), out, "builtin", {}, (), frozenset(), (0,), "held_out_psnr", None, {}, search="optuna")
    return replace(sweep, space={**SPACE, **changes}, trials=trials, draw_seed=seed)


def score(point: Point) -> float:
    """Highest at x = 1, n = 8, with the list."""
    return 30 - (point["x"] - 1) ** 2 - abs(point["n"] - 8) / 8 - (point["kind"] != [1, 2])


def searched(sweep: Sweep) -> OptunaSearch:
    search = OptunaSearch(sweep)
    for i, point in enumerate(search.points):
        search.tell(i, score(point))
    while (point := search.ask()) is not None:
        search.tell(len(search.points) - 1, score(point))
    return search


def states(out: Path) -> list[str]:
    """The states of the points in the study, without those that were left out."""
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{out / STUDY}")
    return [trial.state.name for trial in study.get_trials() if trial.state.name != "FAIL"]


def test_search_finds_better_points_than_random_draws(tmp_path: Path) -> None:
    found = searched(spec(tmp_path / "a")).points
    assert len(found) == len({repr(point) for point in found}) == 30
    assert all(-4 <= p["x"] <= 4 and 1 <= p["n"] <= 64 and p["kind"] in ("a", [1, 2], True) for p in found)
    # The first ten are random ones.
    drawn, chosen = (statistics.median(score(point) for point in part) for part in (found[:10], found[-10:]))
    assert chosen > drawn + 1


def test_search_that_is_opened_again_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    calm = searched(spec(tmp_path / "calm", 14)).points
    # Another process opens the study after every few points. One point each time was asked for and not told.
    for trials in (1, 5, 12, 14):
        search = OptunaSearch(spec(tmp_path / "often", trials))
        for i, point in enumerate(search.points):
            search.tell(i, score(point))
        while (asked := search.ask()) is not None:
            if len(search.points) < trials:
                search.tell(len(search.points) - 1, score(asked))
    assert search.points == calm
    assert searched(spec(tmp_path / "other", 2, seed=1)).points != calm[:2]


class Killed(BaseException):
    """Stands for a kill, which nothing catches."""


@pytest.mark.parametrize("kept", [0, 2])
def test_kill_within_a_request_changes_no_point(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A space so small that most requests need several attempts, which a kill may leave behind as well.
    small: dict[str, Any] = {"x": Range(1, 4), "n": Range(1, 4), "kind": ["a", "b"]}
    calm = searched(spec(tmp_path / "calm", 16, **small)).points
    for asked in (1, 3, 11, 14):
        sweep = spec(tmp_path / "often", 16, **small)
        searched(replace(sweep, trials=asked))
        search = OptunaSearch(sweep)
        storage = search._study._storage
        store, stored = storage.set_trial_param, list[str]()

        def dying(trial: int, name: str, *rest: Any, store: Any = store, stored: list[str] = stored) -> None:
            if len(stored) == kept:
                raise Killed
            stored.append(name)
            store(trial, name, *rest)

        monkeypatch.setattr(storage, "set_trial_param", dying)
        with pytest.raises(Killed):
            search.ask()
        assert states(sweep.out)[-1] == "RUNNING"
    assert searched(sweep).points == calm


def test_kill_between_attempts_changes_no_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"x": Range(1, 2), "n": Range(1, 2), "kind": ["a", "b"]}
    calm = searched(spec(tmp_path / "calm", 8, **small)).points
    search, kills = OptunaSearch(spec(tmp_path / "often", 8, **small)), 0

    def die(self: OptunaSearch, number: int) -> None:
        raise Killed

    while len(search.points) < 8:
        try:
            with monkeypatch.context() as patch:
                # The first repeated point of each request is left behind as it is.
                patch.setattr(OptunaSearch, "_drop", die)
                search.ask()
        except Killed:
            kills += 1
            search = OptunaSearch(search._sweep)
            search.ask()
        search.tell(len(search.points) - 1, score(search.points[-1]))
    assert kills
    assert search.points == calm


def test_plan_leaves_a_study_in_use_as_it_is(tmp_path: Path) -> None:
    sweep = spec(tmp_path, 4)
    assert asked_points(sweep) == []
    assert not (tmp_path / STUDY).exists()
    (tmp_path / STUDY).touch()
    assert asked_points(sweep) == [], "another process is about to make it"
    assert (tmp_path / STUDY).read_bytes() == b""
    search = OptunaSearch(sweep)
    assert asked_points(sweep) == []
    points = [search.ask(), search.ask()]
    # Another process in the middle of a request: the trial is there, its settings are not.
    half = search._study.ask()
    before = (tmp_path / STUDY).read_bytes()
    assert asked_points(sweep) == points
    assert (tmp_path / STUDY).read_bytes() == before
    assert states(tmp_path) == ["RUNNING"] * 3
    search._study.tell(half.number, 1.0)


def test_study_that_another_program_changed_is_an_error(tmp_path: Path) -> None:
    search = OptunaSearch(spec(tmp_path, 4))
    search.ask()
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / STUDY}")
    study.tell(0, state=optuna.trial.TrialState.FAIL)
    with pytest.raises(RunError, match=r"cannot be used: Cannot tell a FAIL trial\.") as caught:
        search.tell(0, 31.0)
    assert "let no other program change the study" in caught.value.hint


def test_outcomes_are_told_once_and_points_without_one_are_kept_open(tmp_path: Path) -> None:
    search = OptunaSearch(spec(tmp_path, 4))
    for _ in range(4):
        search.ask()
    assert search.ask() is None
    search.tell(0, 31.0)
    search.tell(1, None, Look(16, 20.5))
    search.tell(2, None)
    for _ in range(2):
        search.tell(0, 12.0)
        again = OptunaSearch(spec(tmp_path, 4))
        again.tell(1, 12.0)
        assert again.points == search.points
        assert states(tmp_path) == ["COMPLETE", "PRUNED", "RUNNING", "RUNNING"]
        search = again
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / STUDY}")
    assert [trial.value for trial in study.get_trials()] == [31.0, 20.5, None, None]
    assert study.get_trials()[1].intermediate_values == {16: 20.5}
    assert OptunaSearch(spec(tmp_path, 5)).ask() is not None, "a larger number of trials goes on"


def test_no_point_is_tried_twice_and_a_small_space_ends_early(tmp_path: Path) -> None:
    sweep = spec(tmp_path, 30, kind=["a", "b", "c"], n=Range(2, 3), x=[0.5])
    points = []
    search = OptunaSearch(sweep)
    while (point := search.ask()) is not None:
        search.tell(len(search.points) - 1, float(len(points)))
        points.append((point["kind"], point["n"]))
    assert sorted(points) == [(kind, n) for kind in "abc" for n in (2, 3)]
    assert states(tmp_path) == ["COMPLETE"] * 6


def test_damaged_study_is_an_error_that_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match=r"optuna\.db cannot be used"):
        OptunaSearch(spec(tmp_path))
    assert (tmp_path / STUDY).read_bytes() == b"not a database" * 100


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", "1"), ("NUMBA_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    write_scene_of_eight(Path("a"))


@pytest.mark.usefixtures("scene")
def test_killed_sweep_ends_like_one_that_was_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("s.toml").write_text(FILE.format(steps=150).replace("trials = 5", "trials = 3"))
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert "Optuna chooses up to 3 more points" in capsys.readouterr().err
    assert not Path("o").exists()
    command = [sys.executable, "-m", "raymine", "sweep", "s.toml"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not list(Path("o").glob("trial-0001/train-*/checkpoints/step-*.json")):
        assert process.poll() is None, "it has finished before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(0.5)
    assert states(Path("o")) == ["COMPLETE", "RUNNING"]
    first = json.loads(Path("o/trial-0000/stages/train.json").read_text())
    assert main(["sweep", "s.toml", "--dry-run", "--json"]) == 0
    assert [trial["verdict"] for trial in json.loads(capsys.readouterr().out)] == ["skip", "run"]
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    assert main(["sweep", "s.toml"]) == 0
    assert json.loads(Path("o/trial-0000/stages/train.json").read_text()) == first, "it was not trained again"
    assert states(Path("o")) == ["COMPLETE"] * 3
    assert main(["sweep", "s.toml", "--out", "calm"]) == 0
    tables = [json.loads(Path(out, "results.json").read_text())["rows"] for out in ("o", "calm")]
    killed, calm = ([(row["settings"], row["score"]) for row in rows] for rows in tables)
    assert killed == calm
    assert len(killed) == 3


@pytest.mark.usefixtures("scene")
def test_means_over_seeds_and_pruned_points_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    text = FILE.format(steps=48).replace("trials = 5", "trials = 4\nseeds = [0, 1]")
    Path("s.toml").write_text(text + '[prune]\nrule = "halving"\n')
    assert main(["sweep", "s.toml"]) == 0
    rows = json.loads(Path("o/results.json").read_text())["rows"]
    whole = [row for row in rows if row["score"] is not None]
    assert len(rows) == 4
    for row in whole:
        assert row["score"] == pytest.approx(sum(trial["score"] for trial in row["trials"]) / 2)
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{Path('o', STUDY)}")
    told = {trial.state.name: 0 for trial in study.get_trials()} | {"PRUNED": 0}
    for trial in study.get_trials():
        told[trial.state.name] += 1
    assert told.pop("COMPLETE", 0) == len(whole)
    assert told == {"PRUNED": 4 - len(whole)}
    assert told["PRUNED"], "of eight trials, those behind the best half are stopped at the first look"
    values = sorted(trial.value for trial in study.get_trials() if trial.state.name == "COMPLETE")
    assert values == pytest.approx(sorted(row["score"] for row in whole))


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("trials = 5\n", "", 'search = "optuna" needs `trials`'),
        ("trials = 5", "trials = 0", "`trials` must be a whole number"),
        ("low = 1e-3", "low = 0.0", "low < high (above 0 if log = true)"),
        ("high = 300", "high = 200", "low < high"),
        ('"prune"]', '"prunes"]', "prunes"),
        ("batch.samples", "batch.sample", "There is no setting `batch.sample`"),
    ],
)
def test_wrong_files_are_refused_before_anything_is_made(
    old: str, new: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.format(steps=4)
    assert old in text
    Path("s.toml").write_text(text.replace(old, new))
    assert main(["sweep", "s.toml"]) == 2
    assert words in capsys.readouterr().err
    Path("s.toml").write_text(text[: text.index("[space]")])
    assert main(["sweep", "s.toml"]) == 2
    assert "the space is empty" in capsys.readouterr().err
    assert not Path("o").exists()


@pytest.mark.usefixtures("scene")
def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    Path("s.toml").write_text(FILE.format(steps=4))
    assert main(["sweep", "s.toml"]) == 7
    said = capsys.readouterr().err
    assert "needs the package `optuna`" in said
    assert "raymine[optuna]" in said
    assert not Path("o").exists()
