"""Sweeps on real Ray clusters: a node that dies, a sweep that is killed, and clusters that are not there."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raymine.cli import main
from raymine.pipeline import run
from support.disc_scene import write_scene_of_eight
from support.in_this_process import InThisProcess
from support.ray_nodes import ray_nodes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the package ray (extra `ray`)"),
]

TESTS = Path(__file__).parents[1]
TRAIN = '[train]\nrecipe = "support.runs:tiny"\nsteps = {0}\ndevice = "cpu"\nthreads = 1\nhold_out = 2\n'
SIX = 'scene = "a"\nout = "{1}"\n' + TRAIN + "[space]\nbatch.samples = [256, 288, 320]\nmining = ['none', 'prune']\n"
COMMAND = [sys.executable, "-m", "raymine", "sweep", "s.toml"]


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    # Every process of the tests listens on the loopback interface only.
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    write_scene_of_eight(Path("a"))


def table(out: str) -> dict[str, float]:
    """The score of each trial by its name."""
    document = json.loads(Path(out, "results.json").read_text())
    trials = [trial for row in document["rows"] for trial in row["trials"]]
    return {trial["name"]: trial["score"] for trial in trials}


def in_training(out: str) -> list[Path]:
    """The trials that have a checkpoint, and have not finished."""
    saved = {path.parents[2] for path in Path(out).glob("trial-*/train-*/checkpoints/step-*.json")}
    return sorted(path for path in saved if not (path / "stages/train.json").exists())


def wait(process: subprocess.Popen[Any], ready: Any) -> None:
    until = time.monotonic() + 600
    while not ready():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < until
        time.sleep(0.02)


def test_sweep_completes_when_a_node_is_killed_halfway(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("s.toml").write_text(SIX.format(400, "o"))
    with ray_nodes() as nodes:
        command = [*COMMAND, "--on", "ray", "--ray-address", nodes.address]
        with open("said", "wb") as said:
            process = subprocess.Popen(command, stderr=said)
        try:
            # Halfway, with a trial on each of the two nodes.
            wait(process, lambda: len(list(Path("o").glob("*/stages/train.json"))) >= 2 and len(in_training("o")) == 2)
            nodes.kill_second()
            assert process.wait(900) == 0
        finally:
            process.kill()
            process.wait()
    scores = table("o")
    assert sorted(scores) == [f"trial-{i:04d}" for i in range(6)]
    assert all(isinstance(score, float) for score in scores.values())
    assert Path("said").read_text().count("the worker of Ray that ran it was lost") == 1
    attempts = [
        [attempt["from_step"] for attempt in json.loads(path.read_text())["attempts"]]
        for path in Path("o").glob("trial-*/train-*/manifest.json")
    ]
    again = [steps for steps in attempts if len(steps) > 1]
    assert len(again) == 1, "one trial was on the node"
    assert again[0][1] > 0, "it went on from its checkpoint"
    # Where a trial runs changes nothing in it.
    Path("s.toml").write_text(SIX.format(400, "local"))
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    assert main(["sweep", "s.toml"]) == 0
    assert table("local") == scores


def test_killed_sweep_leaves_no_process_and_is_continued_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'scene = "a"\nout = "o"\n' + TRAIN.format(400) + "[space]\nbatch.samples = [256, 300]\n"
    Path("s.toml").write_text(text)
    command = [*COMMAND, "--on", "ray"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait(process, lambda: in_training("o"))
    family = psutil.Process(process.pid).children(recursive=True)
    trials = [each for each in family if "raymine.pipeline.child" in " ".join(each.cmdline())]
    assert trials
    process.kill()
    process.wait()
    assert not psutil.wait_procs(trials, timeout=60)[1]
    # The second time a signal stops it, in good order. The third time it ends, on this machine alone.
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait(process, lambda: (Path("o/trial-0000/stages/train.json")).exists() and in_training("o"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    manifest = next(Path("o").glob("trial-0001/train-*/manifest.json"))
    assert json.loads(manifest.read_text())["status"] == "stopped"
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    assert main(["sweep", "s.toml"]) == 0
    attempts = {path.parts[1]: json.loads(path.read_text())["attempts"] for path in Path("o").glob("*/*/manifest.json")}
    assert {name: [a["from_step"] > 0 for a in steps] for name, steps in attempts.items()} == {
        "trial-0000": [False, True],
        "trial-0001": [False, True],
    }
    assert all(isinstance(score, float) for score in table("o").values())
    # Ray's own processes take a minute to notice that the one that started them is gone.
    assert not psutil.wait_procs(family, timeout=300)[1]


def test_what_is_not_a_cluster_is_refused_in_a_sentence_and_in_time() -> None:
    Path("s.toml").write_text(SIX.format(4, "o"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port in (1, server.getsockname()[1]):
            command = [*COMMAND, "--on", "ray", "--ray-address", f"127.0.0.1:{port}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 2
            assert f"error: There is no Ray cluster at 127.0.0.1:{port}" in done.stderr
            assert "Traceback" not in done.stderr
            assert not list(Path("o").glob("trial-*"))
