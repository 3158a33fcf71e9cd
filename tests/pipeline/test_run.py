"""Pipelines end to end: real stages, and quick ones of one's own for what concerns processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest
from PIL import Image

from raymine.pipeline import PipelineResult, devices, load_pipeline, run_pipeline
from raymine.pipeline import run as module
from raymine.pipeline.devices import GIB
from raymine.pipeline.plan import Task
from raymine.pipeline.run import run_tasks
from raymine.pipeline.spec import Pipeline, SceneSpec
from raymine.pipeline.stages import OwnStage
from support.disc_scene import write_scene_of_eight
from support.in_this_process import InThisProcess

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    # Stages are other processes, which must find the modules of the tests.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def go(told: list[str] | None = None) -> PipelineResult:
    return run_pipeline(load_pipeline(Path("p.toml")), tell=(told if told is not None else []).append)


def states(result: PipelineResult) -> dict[str, str]:
    return {f"{task.scene} {task.stage}": task.state for task in result.tasks}


def ran(result: PipelineResult) -> list[str]:
    return [name for name, state in states(result).items() if state == "done"]


def repaint(picture: Path) -> None:
    pixels = np.asarray(Image.open(picture)).copy()
    pixels[5:9, 5:9, :3] = 17
    Image.fromarray(pixels).save(picture)


def test_wait_for_memory_that_other_programs_use_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CROWDED", 0.2)
    looks: list[str] = []

    def free(gpu: str) -> float:
        looks.append(gpu)
        return 6 * GIB if len(looks) in (1, 2) or len(looks) > 20 else 1 * GIB

    monkeypatch.setattr(devices, "free_gpu_memory", free)
    scene = SceneSpec("one", "builtin")
    tasks = [
        Task(scene, OwnStage(name, (sys.executable, "-c", ""), (), (), tmp_path), (), tmp_path / "one") for name in "xy"
    ]
    where = devices.places(1, ["0"], 5 * GIB)
    told: list[str] = []
    done = run_tasks(Pipeline(tmp_path / "f", tmp_path, (scene,)), tasks, jobs=None, tell=told.append, where=where)
    assert [task.state for task in done.tasks] == ["done", "done"]
    waits = [i for i, line in enumerate(told) if line.startswith("Waiting until a GPU has 5 GiB of free memory")]
    assert len(waits) == 1
    assert "x done" in told[waits[0] - 1]
    assert "y started" in told[waits[0] + 1]


TRAIN = '[train]\nrecipe = "support.runs:tiny"\nsteps = {0}\ndevice = "cpu"\nthreads = 1\n[eval]\nallow = ["support"]\n'


def test_stages_run_once_and_again_only_where_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    for name in ("a", "b"):
        write_scene_of_eight(Path(name))
    Path("p.toml").write_text(
        'stages = ["train", "eval"]\nout = "o"\n' + TRAIN.format(3) + '[[scene]]\npath = "a"\n[[scene]]\npath = "b"\n'
    )
    first = go()
    assert set(states(first).values()) == {"done"}, first
    started = time.perf_counter()
    second = go()
    assert time.perf_counter() - started < 5
    assert set(states(second).values()) == {"skipped"}
    assert second.results == first.results

    os.utime("a/train/r_0.png")
    assert ran(go()) == ["a pack"], "the file was touched, its content is the same"
    repaint(Path("a/test/r_1.png"))
    assert ran(go()) == ["a pack", "a eval"], "no training image changed"
    repaint(Path("b/train/r_2.png"))
    third = go()
    assert ran(third) == ["b pack", "b train", "b eval"]
    assert third.results["b"]["train"]["tensors"] != first.results["b"]["train"]["tensors"]
    Path(third.results["b"]["train"]["run"], "eval/metrics.json").unlink()
    assert ran(go()) == ["b eval"]


def write_own(*stages: str) -> None:
    write_scene_of_eight(Path("a")) if not Path("a").exists() else None
    names = [stage.split('"')[1] for stage in stages]
    listed = ", ".join(f'"{name}"' for name in names)
    Path("p.toml").write_text(
        f'out = "o"\nstages = [{listed}]\nbackoff = 0.05\nretries = 2\n[[scene]]\npath = "a"\n'
        + "".join(f"[[stage]]\n{stage}\n" for stage in stages)
    )


def own(name: str, code: str, needs: str = "[]", inputs: str = "[]") -> str:
    command = f'[{json.dumps(sys.executable)}, "-c", {json.dumps(code)}]'
    return f'name = "{name}"\ncommand = {command}\nneeds = {needs}\ninputs = {inputs}'


APPEND = "open('log', 'a').write('{word}')"


def test_failed_stage_is_retried_and_its_dependants_wait() -> None:
    flaky = "import os, sys\nopen('tries', 'a').write('x')\nsys.exit(os.path.getsize('tries') < 3)"
    write_own(own("flaky", flaky), own("after", APPEND.format(word="b"), '["flaky"]'))
    told: list[str] = []
    assert states(go(told)) == {"a flaky": "done", "a after": "done"}
    assert Path("tries").read_text() == "xxx"
    assert sum("it is tried again" in line for line in told) == 2
    write_own(own("bad", "import sys; sys.exit('no luck')"), own("after", APPEND.format(word="c"), '["bad"]'))
    result = go()
    assert states(result) == {"a bad": "failed", "a after": "blocked"}
    assert result.exit_code == 1
    assert Path("log").read_text() == "b"
    # A mistake of the user is not tried again.
    write_own(own("wrong", "open('wrong', 'a').write('x'); raise SystemExit(2)"))
    assert states(go()) == {"a wrong": "failed"}
    assert Path("wrong").read_text() == "x"
    write_own('name = "gone"\ncommand = ["no-such-program", "{name}"]')
    told = []
    assert states(go(told)) == {"a gone": "failed"}
    assert "gone failed: the program no-such-program cannot be started: No such file or directory." in told[-1]


def test_stage_of_ones_own_runs_again_when_its_input_or_command_changes() -> None:
    Path("input").write_text("1")
    write_own(own("s", APPEND.format(word="x"), inputs='["input"]'))
    assert [ran(go()), ran(go())] == [["a s"], []]
    Path("input").write_text("22")
    assert ran(go()) == ["a s"]
    write_own(own("s", APPEND.format(word="y"), inputs='["input"]'))
    assert ran(go()) == ["a s"]
    assert Path("log").read_text() == "xxy"


def test_stage_of_ones_own_runs_again_when_a_stage_that_it_needs_has_other_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_scene_of_eight(Path("a"))
    stage = own("s", "print(1)", '["check"]')
    Path("p.toml").write_text(f'out = "o"\nstages = ["check", "s"]\n[[scene]]\npath = "a"\n[[stage]]\n{stage}\n')
    started: list[str] = []

    def start(command: list[str], *, stdout: IO[bytes], stderr: IO[bytes], **others: object) -> InThisProcess:
        started.append(command[4])
        if command[4] == "own":
            command = [*command[:4], "raymine", "recipes", "--json"]
        return InThisProcess(command, stdout=stdout, stderr=stderr)

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    first = go()
    assert ran(first) == ["a check", "a s"]
    assert ran(go()) == []
    repaint(Path("a/train/r_2.png"))
    second = go()
    assert second.results["a"]["check"] == first.results["a"]["check"], "the warnings are the same"
    assert ran(second) == ["a check", "a s"]
    assert started == ["raymine", "own"] * 2


def test_attempt_that_dies_silently_is_not_blamed_on_an_earlier_error() -> None:
    code = "import os, sys\nopen('n', 'a').write('x')\nif os.path.getsize('n') < 2: print('error: a first mishap', "
    write_own(own("s", code + "file=sys.stderr)\nsys.exit(5)"))
    told: list[str] = []
    result = go(told)
    assert any("failed: a first mishap; it is tried again" in line for line in told)
    assert [task.why for task in result.tasks] == ["exit code 5"]
    assert sum("failed: exit code 5" in line for line in told) == 2


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (5, "error: earlier\nerror: the disk is full\nhint\n", "the disk is full"),
        (5, "words\n", "exit code 5"),
        (-9, "error: the disk is full\n", "it was ended by SIGKILL"),
        (-77, "", "it was ended by signal 77"),
    ],
)
def test_reason_of_a_failure_is_the_last_error_of_this_attempt(code: int, said: str, why: str, tmp_path: Path) -> None:
    task = Task(SceneSpec("a", "builtin"), OwnStage("s", ("x",), (), (), tmp_path), (), tmp_path)
    assert module._reason(task, 4, 0) == "exit code 4", "without a log"
    task.log.parent.mkdir(parents=True)
    before = b"error: of the attempt before\n"
    task.log.write_bytes(before + said.encode())
    assert module._reason(task, code, len(before)) == why


def test_two_jobs_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    look = "for _ in range(200):\n    if os.path.exists('{1}'): break\n    time.sleep(0.05)\nelse: raise SystemExit(2)"
    wait = "import os, time\nopen('{0}', 'w')\n" + look
    write_own(own("one", wait.format("x", "y")), own("two", wait.format("y", "x")))
    assert run_pipeline(load_pipeline(Path("p.toml")), jobs=2, tell=lambda _: None).exit_code == 0


def start_and_kill(after: float) -> None:
    """Run the pipeline in another process, and kill that after some seconds."""
    code = "from pathlib import Path\nfrom raymine.pipeline import *\nprint(1, flush=True)\n"
    code += "run_pipeline(load_pipeline(Path('p.toml')), tell=lambda _: None)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after)
    process.kill()
    process.wait()
    process.stdout.close()


def test_pipeline_killed_while_it_trains_gives_the_model_of_an_undisturbed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_scene_of_eight(Path("a"))
    text = 'stages = ["train"]\nout = "{0}"\n' + TRAIN.format(200).replace("{", "{{") + '[[scene]]\npath = "a"\n'
    Path("p.toml").write_text(text.format("killed"))
    until, saved = time.monotonic() + 60, Path("killed/a").glob
    code = "from pathlib import Path\nfrom raymine.pipeline import *\n"
    code += "run_pipeline(load_pipeline(Path('p.toml')), tell=lambda _: None)"
    process = subprocess.Popen([sys.executable, "-c", code])
    while time.monotonic() < until and not list(saved("train-*/checkpoints/step-*.json")):
        assert process.poll() is None, "it has finished before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    again = go()
    assert again.exit_code == 0, again
    Path("p.toml").write_text(text.format("calm"))
    assert go().results["a"]["train"]["tensors"] == again.results["a"]["train"]["tensors"]
    manifest = json.loads(Path(again.results["a"]["train"]["run"], "manifest.json").read_text())
    assert [attempt["from_step"] > 0 for attempt in manifest["attempts"]] == [False, True], "it was resumed"


def test_killed_pipeline_ends_with_the_same_result_and_leaves_no_process() -> None:
    # Each stage writes its file slowly; a partial file would be seen in the last one.
    digits = "    for i in range(10):\n        f.write(str(i)); f.flush(); time.sleep(0.03)"
    slow = "import time\nwith open('{0}', 'w') as f:\n" + digits
    join = "open('end', 'w').write(open('one').read() + open('two').read())"
    write_own(own("one", slow.format("one")), own("two", slow.format("two"), '["one"]'), own("end", join, '["two"]'))
    draw = random.Random(3)
    for _ in range(5):
        start_and_kill(draw.uniform(0.05, 0.7))
    assert go().exit_code == 0
    assert Path("end").read_text() == "0123456789" * 2
    time.sleep(0.2)
    running = [Path(f"/proc/{n}/cmdline") for n in os.listdir("/proc") if n.isdigit()] if Path("/proc").exists() else []
    assert not [p for p in running if p.exists() and b"f.write(str(i))" in p.read_bytes()]


def test_signal_stops_the_stages_and_the_exit_code_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    write_own(own("long", "import time; time.sleep(60)"))
    monkeypatch.setattr(module, "_POLL", 0.01)
    pending = [0]

    def tell(line: str) -> None:
        if "started" in line and not pending[0]:
            pending[0] = 1
            signal.setitimer(signal.ITIMER_REAL, 0.3)

    monkeypatch.setattr(signal, "SIGTERM", signal.SIGALRM)
    started = time.perf_counter()
    result = run_pipeline(load_pipeline(Path("p.toml")), tell=tell)
    assert time.perf_counter() - started < 20
    assert result.exit_code == 128 + signal.SIGALRM
    assert states(result) == {"a long": "failed"}
