"""A whole pipeline over two scenes, as a process that is killed at five random moments, against an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from support.disc_scene import write_scene_of_eight
from support.paths import environment
from support.scene_writers import ring, write_llff

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]

STAGES = ("check", "pack", "train", "eval", "render", "export", "verify")
PIPELINE = f"""
stages = {json.dumps(STAGES)}
out = "o"
[train]
recipe = "support.runs:tiny"
steps = 60
device = "cpu"
threads = 1
[eval]
allow = ["support"]
[render]
allow = ["support"]
frames = 3
size = "32x32"
[export]
allow = ["support"]
to = ["model.safetensors", "points.ply"]
format = "points"
longest = 20
[verify]
allow = ["support"]
[[scene]]
path = "disc"
[[scene]]
path = "noise"
"""
KILLS = 5
MOST_STARTED = 3
"""Stages that a process starts at most before it is killed."""


class Shell:
    """Runs `raymine pipeline p.toml` in a folder, as a process with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {"RAYMINE_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
        self.environment = environment() | own | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self.command = [sys.executable, "-m", "raymine", "pipeline", "p.toml", "--json"]

    def run(self) -> tuple[dict[str, str], float]:
        """The state of every stage, as "scene stage", and the seconds of the whole process."""
        began = time.perf_counter()
        done = subprocess.run(
            self.command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        tasks = json.loads(done.stdout)["tasks"]
        return {f"{task['scene']} {task['stage']}": task["state"] for task in tasks}, time.perf_counter() - began

    def run_and_kill(self, stages: int, seconds: float) -> None:
        """Kill the process and its group when it has started some stages, and some seconds have passed since."""
        process = subprocess.Popen(
            self.command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        with process.stderr:
            told = (line for line in process.stderr if " started on " in line)
            assert len([line for _, line in zip(range(stages), told, strict=False)]) == stages
            time.sleep(seconds)
            assert process.poll() is None, "it ended before it could be killed"
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stages_alive(self) -> list[str]:
        """Command lines of processes that a killed pipeline has left."""
        found = []
        for each in psutil.process_iter(["cmdline", "cwd"]):
            words = " ".join(each.info["cmdline"] or ())
            if "raymine.pipeline.child" in words and each.info["cwd"] == str(self.folder):
                found.append(words)
        return found


def outcome(out: Path) -> dict[str, Any]:
    """What a pipeline found, without times: keys and results of all stages; scores; digests are among the results."""
    records = {str(path.relative_to(out)): json.loads(path.read_text()) for path in sorted(out.glob("*/stages/*.json"))}
    kept = {name: {key: record[key] for key in ("key", "parts", "result")} for name, record in records.items()}
    scores = json.loads((out / "results.json").read_text())["scores"]
    timed = ("train_seconds", "wall", "memory")
    return {"records": kept, "scores": [{k: v for k, v in line.items() if k not in timed} for line in scores]}


def made(out: Path, ends: Iterable[str]) -> dict[str, bytes]:
    """The contents of exported and rendered files, by their endings. How often a run was saved depends on its speed."""
    found = {str(path.relative_to(out)): path for end in ends for path in sorted(out.rglob(f"*{end}"))}
    return {name: path.read_bytes() for name, path in found.items() if path.parent.name != "checkpoints"}


def repaint(picture: Path) -> None:
    pixels = np.asarray(Image.open(picture)).copy()
    pixels[5:9, 5:9, :3] = 17
    Image.fromarray(pixels).save(picture)


def ran(states: dict[str, str]) -> list[str]:
    assert set(states.values()) <= {"done", "skipped"}
    return [name for name, state in states.items() if state == "done"]


def test_pipeline_killed_five_times_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs the extra `video`")
    write_scene_of_eight(tmp_path / "disc")
    write_llff(ring(), tmp_path / "noise")
    (tmp_path / "p.toml").write_text(PIPELINE)
    shell, everything = Shell(tmp_path), [f"{scene} {stage}" for scene in ("disc", "noise") for stage in STAGES]
    states, whole = shell.run()
    assert ran(states) == everything
    # Under the same path, so that the records name the same files.
    (tmp_path / "o").rename(tmp_path / "calm")
    (tmp_path / "cache").rename(tmp_path / "cache-calm")

    draw, each = random.Random(5), whole / len(everything)
    moments = [(draw.randint(1, MOST_STARTED), draw.uniform(0, each)) for _ in range(KILLS)]
    assert sum(stages for stages, _ in moments) < len(everything), "each of them kills a pipeline that still runs"
    for stages, seconds in moments:
        shell.run_and_kill(stages, seconds)
        time.sleep(0.5)
        assert shell.stages_alive() == []
    states, rest = shell.run()
    assert set(states.values()) <= {"done", "skipped"}
    assert outcome(tmp_path / "o") == outcome(tmp_path / "calm")
    ends = (".safetensors", ".ply", ".mp4")
    files = made(tmp_path / "o", ends)
    assert {Path(name).suffix for name in files} == set(ends)
    assert files == made(tmp_path / "calm", ends)

    states, idle = shell.run()
    assert ran(states) == []
    repaint(tmp_path / "disc/test/r_1.png")
    states, _ = shell.run()
    assert ran(states) == [f"disc {stage}" for stage in ("check", "pack", "eval", "verify")]
    repaint(tmp_path / "disc/train/r_2.png")
    states, again = shell.run()
    assert ran(states) == [f"disc {stage}" for stage in STAGES]
    print(f"whole {whole:.1f} s, after five kills {rest:.1f} s, nothing to do {idle:.2f} s, one scene {again:.1f} s")
