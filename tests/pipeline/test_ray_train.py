"""One run on two workers of a Ray `TorchTrainer`, one of which is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raymine.errors import ConfigError, MissingExtraError, TrainingError
from raymine.pipeline import ray_train
from support.disc_scene import write_scene_of_eight

TESTS = Path(__file__).parents[1]
DRIVER = """
import json, os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from raymine.pipeline.ray_train import train_rank

ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
trainer = TorchTrainer(
    train_rank,
    train_loop_config=json.loads(sys.argv[1]),
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
    torch_config=TorchConfig(backend="gloo"),
    run_config=RunConfig(name="x", storage_path=os.path.abspath("ray"), failure_config=FailureConfig(max_failures=1)),
)
print("result", json.dumps(trainer.fit().return_value))
"""


def ranks() -> dict[str, psutil.Process]:
    """The processes of the ranks that run in this folder, by rank."""
    found = {}
    for process in psutil.process_iter():
        try:
            line, variables = process.cmdline(), process.environ()
        except (psutil.Error, OSError):
            continue
        if "raymine.pipeline.child" in line and str(Path("run").absolute()) in line and "RANK" in variables:
            found[variables["RANK"]] = process
    return found


@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the package ray (extra `ray`)")
def test_two_workers_train_one_run_and_go_on_after_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    write_scene_of_eight(Path("a"))
    scene, run = str(Path("a").absolute()), Path("run").absolute()
    config = {"scene": scene, "out": str(run), "recipe": "support.runs:tiny", "steps": 300, "device": "cpu"}
    with open("said", "wb") as said:
        command = [sys.executable, "-c", DRIVER, json.dumps(config)]
        driver = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        until = time.monotonic() + 600
        found: dict[str, psutil.Process] = {}
        while len(found) < 2 or not list(run.glob("checkpoints/step-*.json")):
            assert driver.poll() is None, Path("said").read_text()
            assert time.monotonic() < until
            found = found if len(found) == 2 else ranks()
            time.sleep(0.02)
        found["1"].kill()
        assert driver.wait(900) == 0, Path("said").read_text()
    finally:
        driver.kill()
        driver.wait()
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["step"] == 300
    starts = [attempt["from_step"] for attempt in manifest["attempts"]]
    assert len(starts) == 2
    assert starts[1] > 0
    line = next(line for line in Path("said").read_text().splitlines() if line.startswith("result "))
    result = json.loads(line.removeprefix("result "))
    assert result["step"] == 300
    assert result["test_psnr"] > 5
    assert "Processes: 2" in Path("said").read_text()


def test_rank_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(TrainingError, match=r"Rank 0 ended with exit code 2: --steps must be"):
        ray_train._run({"scene": "builtin", "out": "run", "steps": -1}, alone)
    assert not Path("run").exists()


def test_worker_that_cannot_go_on_ends_its_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_train, "words_of", lambda _: [])
    # A rank that speaks, saves its work when it is told to end, and would otherwise run for long.
    rank = "import signal, sys, time\n" + (
        "def save(*_):\n    sys.stderr.write('x' * 300000)\n    open('saved', 'w').close()\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('began', file=sys.stderr, flush=True)\ntime.sleep(3000)\n"
    )
    started: list[subprocess.Popen[str]] = []
    whole = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        started.append(whole([sys.executable, "-c", rank], **options))
        return started[0]

    def broken(line: str) -> None:
        raise OSError(f"no room to write {line}")

    monkeypatch.setattr(ray_train.subprocess, "Popen", start)
    monkeypatch.setattr(ray_train.sys, "stderr", SimpleNamespace(write=broken))
    with pytest.raises(OSError, match="no room to write began"):
        ray_train._run({"scene": "builtin", "out": "run"}, {"RANK": "0"})
    assert started[0].returncode == 143
    assert Path("saved").exists()


def test_requests_that_cannot_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = SimpleNamespace(train=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(ConfigError, match="needs `out`"):
        ray_train.train_rank({"scene": "builtin"})
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        ray_train.train_rank({"scene": "builtin", "out": "run"})
