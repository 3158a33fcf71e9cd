"""Sweeps from file to table: trials run, are kept, resume after a kill, and wrong files are refused."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raymine.cli import main
from raymine.cli.training.train import Train
from raymine.pipeline import run as module
from raymine.pipeline.sweep_spec import load_sweep
from support.disc_scene import write_scene_of_eight
from support.in_this_process import InThisProcess
from support.scene_writers import ring, write_image, write_transforms

TESTS = Path(__file__).parents[1]
TRAIN = '[train]\nrecipe = "support.runs:tiny"\nsteps = {0}\ndevice = "cpu"\nthreads = 1\nhold_out = 2\n'
FILE = 'scene = "a"\nout = "o"\n' + TRAIN.format(4)
GRID = FILE + '[space]\n"field.grid.levels" = [2, 3]\nmining = ["none", "prune"]\n'


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    # Trials may be other processes, which must find the modules of the tests.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", "1"), ("NUMBA_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    write_scene_of_eight(Path("a"))


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Trials run in this process; the list receives their command lines."""
    started: list[list[str]] = []

    def start(command: list[str], **options: Any) -> InThisProcess:
        started.append(command[5:])
        return InThisProcess(command, **options)

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    return started


def sweep(text: str, *arguments: str) -> int:
    Path("s.toml").write_text(text)
    return main(["sweep", "s.toml", *arguments])


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("o/results.json").read_text())
    return found


def test_grid_trains_every_combination_once_and_ranks_them(
    no_processes: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(GRID, "--dry-run", "--json") == 0
    assert [trial["verdict"] for trial in json.loads(capsys.readouterr().out)] == ["run"] * 4
    assert not Path("o").exists()
    assert sweep(GRID) == 0
    table = capsys.readouterr().out
    assert "field.grid.levels" in table
    assert "mining" in table
    first = results()
    scores = [row["score"] for row in first["rows"]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 1
    asked = {(row["settings"]["field.grid.levels"], row["settings"]["mining"]) for row in first["rows"]}
    assert asked == {(2, "none"), (2, "prune"), (3, "none"), (3, "prune")}
    for row in first["rows"]:
        config = json.loads(Path(row["trials"][0]["result"]["run"], "config.json").read_text())["train"]
        assert config["field"]["grid"]["levels"] == row["settings"]["field.grid.levels"]
        assert config["mining"]["policy"] == row["settings"]["mining"]

    assert len(no_processes) == 4
    assert sweep(GRID) == 0
    assert len(no_processes) == 4, "finished trials are kept"
    assert [row["score"] for row in results()["rows"]] == scores
    # A kill between the end of a run and its record: the run is finished already, and gives the same score.
    Path("o/trial-0001/stages/train.json").unlink()
    assert sweep(GRID) == 0
    assert len(no_processes) == 5
    assert [row["score"] for row in results()["rows"]] == scores
    # The folder belongs to this sweep.
    assert sweep(GRID.replace("[2, 3]", "[2, 4]")) == 4
    assert "is of another sweep" in capsys.readouterr().err


def test_trials_follow_images_beside_a_scene_that_is_a_file(no_processes: list[list[str]]) -> None:
    write_transforms(ring(), Path("f"))
    text = FILE.replace('"a"', '"transforms.json"') + '[space]\nmining = ["none"]\n'

    def go(text: str) -> int:
        Path("f/s.toml").write_text(text)
        return main(["sweep", "f/s.toml"])

    assert go(text) == 0
    assert go("jobs = 1\n" + text) == 0
    assert len(no_processes) == 1, "neither the file of the sweep nor its results are images"
    write_image(Path("f/images/photo_03.png"), (48, 32), seed=99)
    assert go(text) == 0
    assert len(no_processes) == 2


def test_lost_tensors_of_a_trial_are_made_again(no_processes: list[list[str]]) -> None:
    text = FILE + '[space]\nmining = ["none"]\n'
    assert sweep(text) == 0
    first = results()["rows"][0]["score"]
    saved = Path(results()["rows"][0]["trials"][0]["result"]["run"], "checkpoints")
    for path in saved.glob("*.safetensors"):
        path.unlink()
    assert sweep(text) == 0
    assert len(no_processes) == 2
    assert results()["rows"][0]["score"] == first
    assert list(saved.glob("*.safetensors"))


def test_random_points_repeat_and_seeds_are_averaged(no_processes: list[list[str]]) -> None:
    space = "[space]\nfield.grid.levels = {low = 2, high = 4}\noptimiser.lr = {low = 1e-3, high = 1e-1, log = true}\n"
    text = 'search = "random"\ntrials = 2\nseeds = [3, 5]\n' + FILE + space
    assert sweep(text) == 0
    rows = results()["rows"]
    assert [[trial["seed"] for trial in row["trials"]] for row in rows] == [[3, 5], [3, 5]]
    for row in rows:
        scores = [trial["score"] for trial in row["trials"]]
        assert row["score"] == pytest.approx(sum(scores) / 2)
        assert row["spread"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    assert sweep(text) == 0
    assert len(no_processes) == 4, "the same points are drawn again"


PRUNED = FILE + '[prune]\nmin_trials = 1\n[space]\n"optimiser.lr" = [1e-2, 1e-9]\n'


def test_bad_trial_is_pruned_and_shown_with_its_step(
    no_processes: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    text = PRUNED.replace("steps = 4", "steps = 64")
    assert sweep(text) == 0
    good, bad = results()["rows"]
    assert good["score"] is not None
    assert bad["score"] is None
    stop = bad["trials"][0]["result"]["pruned"]
    assert stop["step"] == 16, "the first of four looks"
    assert "pruned at step 16" in " ".join(capsys.readouterr().out.split())
    run = Path(bad["trials"][0]["result"]["run"])
    assert json.loads((run / "manifest.json").read_text())["step"] == 16
    # A record keeps it pruned; without one, as after a kill, it is not trained on.
    for _ in range(2):
        assert sweep(text) == 0
        assert results()["rows"][1]["trials"][0]["result"]["pruned"] == stop
        assert json.loads((run / "manifest.json").read_text())["step"] == 16
        Path("o/trial-0001/stages/train.json").unlink()
    assert len(no_processes) == 3
    assert sweep(text.replace("min_trials = 1", "min_trials = 2")) == 4


def test_trials_start_through_srun_inside_a_slurm_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
    )
    (tools / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    for name, value in (("JOB_ID", "7"), ("JOB_NODELIST", "n1,n2"), ("JOB_CPUS_PER_NODE", "1(x2)")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert sweep(FILE + '[space]\nmining = ["none", "prune"]\n') == 0
    assert all(row["score"] is not None for row in results()["rows"])
    asked = (tools / "srun.log").read_text().splitlines()
    assert sorted(line.split()[2] for line in asked) == ["--nodelist=n1", "--nodelist=n2"]


def test_killed_sweep_continues_its_trial_from_the_checkpoint(no_processes: list[list[str]]) -> None:
    text = 'scene = "a"\nout = "o"\n' + TRAIN.format(200) + "[space]\nbatch.samples = [256, 300]\n"
    Path("s.toml").write_text(text)
    process = subprocess.Popen([sys.executable, "-m", "raymine", "sweep", "s.toml"], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 90
    while not list(Path("o").glob("trial-0000/train-*/checkpoints/step-*.json")):
        assert process.poll() is None, "it has finished before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(0.3)
    assert sweep(text) == 0
    killed = results()
    run = next(t["result"]["run"] for row in killed["rows"] for t in row["trials"] if t["name"] == "trial-0000")
    attempts = json.loads(Path(run, "manifest.json").read_text())["attempts"]
    assert [attempt["from_step"] > 0 for attempt in attempts] == [False, True]
    assert attempts[0]["command"][:4] == ["python", "-m", "raymine.cli.training.trial", '{"batch.samples": 256}']
    assert main(["sweep", "s.toml", "--out", "calm"]) == 0
    calm = json.loads(Path("calm/results.json").read_text())
    assert [row["score"] for row in calm["rows"]] == [row["score"] for row in killed["rows"]]


def test_failed_trial_is_tried_again_and_leaves_the_others_alone(
    no_processes: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = module.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        if "trial-0001" in " ".join(command):
            no_processes.append(command)
            return SimpleNamespace(stdin=None, returncode=1, poll=lambda: 1)
        return whole(command, **options)

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    assert sweep(FILE + '[space]\nmining = ["none", "prune"]\n') == 1
    assert len(no_processes) == 3
    assert [row["score"] is None for row in results()["rows"]] == [False, True]
    assert "trial-0001: exit code 1" in capsys.readouterr().err


def test_page_and_table_are_written_together(no_processes: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(GRID.replace("steps = 4", "steps = 32")) == 0
    assert "Results: " in capsys.readouterr().err
    page = Path("o/results.html").read_text()
    best = results()["rows"][0]
    assert f"with {best['score']:.2f} dB on the held-out views" in page
    assert f"raymine eval {best['trials'][0]['result']['run']}" in page
    assert "Quality against steps" in page


def test_examples_can_be_read() -> None:
    known = [field.name for field in dataclasses.fields(Train)]
    files = sorted((TESTS.parent / "examples" / "sweeps").glob("*.toml"))
    assert [load_sweep(path, known).search for path in files] == ["grid", "optuna"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (GRID.replace("grid.levels", "grid.leveling"), 2, "There is no setting `field.grid.leveling`"),
        (GRID.replace("prune", "prunes"), 2, "prunes"),
        (FILE, 2, "the space is empty"),
        (GRID.replace('"a"', '"b"'), 3, "the scene does not exist"),
        (GRID.replace('scene = "a"', ""), 2, "`scene` must be text"),
        (GRID.replace("hold_out = 2\n", ""), 2, "needs `hold_out` of at least 1"),
        (GRID.replace("hold_out = 2", "hold_out = 8"), 2, "leaves nothing to train on"),
        (GRID.replace("steps", "stepz"), 2, "has no option `stepz`. Did you mean `steps`?"),
        ('metric = "test_psnr"\n' + GRID, 2, "`metric` must be held_out_psnr or best_held_out_psnr"),
        ('search = "best"\n' + GRID, 2, "`search` must be grid or random or optuna"),
        ("trials = 3\n" + GRID, 2, "is not for a grid"),
        ('search = "random"\n' + GRID, 2, "needs `trials`"),
        (GRID + '[prune]\nrule = "worst"\n', 2, "`rule` in [prune] must be median or halving"),
        (GRID + "[prune]\nfactor = 3\n", 2, '`factor` in [prune] is for rule = "halving"'),
        (GRID + "[prune]\nlook = 3\n", 2, "[prune] has an unknown key `look`"),
        ("memory = -1\n" + GRID, 2, "`memory` must be a number"),
        ("seeds = [1, 1]\n" + GRID, 2, "names a seed twice"),
        (GRID.replace("[2, 3]", "{low = 2, high = 3}"), 2, "a grid needs lists"),
        (GRID.replace("[2, 3]", "{low = 3, high = 2}"), 2, "low < high"),
        (GRID.replace("[2, 3]", "[]"), 2, "must be a list of values"),
        (FILE + "[space]\nseed = [1, 2]\n", 2, "may not vary `seed`"),
        (FILE + "[space]\nhold_out = [1, 2]\n", 2, "may not vary `hold_out`"),
        (GRID.replace("steps", "resume = true\nsteps"), 2, "[train] may not set `resume`; the sweep does"),
        (GRID.replace("steps", "processes = 2\nsteps"), 2, "[train] may not set `processes`; a trial is one process"),
        (GRID.replace("steps", "max-restarts = 2\nsteps"), 2, "[train] may not set `max_restarts`; a trial is one"),
        (GRID.replace("steps", "view = true\nsteps"), 2, "[train] may not set `view`; trials run unwatched"),
        (FILE + "[space]\ngpus = [1, 2]\n", 2, "[space] may not vary `gpus`; a trial is one process"),
        (GRID.replace("steps = 4", "steps = [1, 2]"), 2, "[train] `steps` takes one value, got [1, 2]"),
        (GRID.replace("steps = 4", "steps = true"), 2, "[train] `steps` must be a value, got true"),
        (FILE + "[space]\nmining = [['none', 'prune']]\n", 2, "[space] `mining` takes one value"),
        (FILE + "[space]\nprogressive = [2, true]\n", 2, "[space] `progressive` must be true or false, got 2"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(
    text: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(text) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("error: ")
    assert not Path("o").exists()


def test_folder_of_something_else_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("o").mkdir()
    Path("o/mine").write_text("x")
    assert sweep(GRID) == 4
    assert "is not of a sweep; it is left untouched" in capsys.readouterr().err
    assert [path.name for path in Path("o").iterdir()] == ["mine"]
