"""How trials share a Ray cluster, what runs on its nodes, and what is told when something is missing; without Ray."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raymine.cli import main
from raymine.errors import RunError
from raymine.pipeline import ray_cluster, run
from raymine.pipeline.devices import LOST, Place
from raymine.pipeline.plan import Task
from raymine.pipeline.ray_cluster import RayProcess, Share, run_on_node, share_of
from raymine.pipeline.run import PipelineResult, run_tasks
from raymine.pipeline.spec import Pipeline, SceneSpec
from raymine.pipeline.stages import OwnStage
from support.disc_scene import write_scene_of_eight

SWEEP = 'scene = "a"\nout = "o"\n[train]\nsteps = 4\nhold_out = 2\ndevice = "cpu"\n[space]\nmining = ["none", "hard"]\n'


@pytest.mark.parametrize(
    ("nodes", "jobs", "share"),
    [
        ([{"CPU": 16.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}], None, Share(6, 1, 1)),
        ([{"CPU": 16.0, "GPU": 4.0}], 9, Share(9, 1, 1)),
        ([{"CPU": 16.0}, {"CPU": 8.0}, {"memory": 5.0}], None, Share(2, 8, 0)),
        ([{"CPU": 16.0}, {"CPU": 8.0}], 5, Share(5, 2, 0)),
        ([{"CPU": 2.0}], 4, Share(4, 0.5, 0)),
        ([{"memory": 5.0}], 4, None),
    ],
)
def test_trials_share_what_the_nodes_have(nodes: list[dict[str, float]], jobs: int | None, share: Share | None) -> None:
    assert share_of(nodes, jobs) == share


def test_command_runs_with_its_files_and_environment(tmp_path: Path) -> None:
    printed, log = str(tmp_path / "p.out"), str(tmp_path / "p.log")
    words = ["own", sys.executable, "-c", "import os, sys; print(os.environ['X']); sys.exit(3)"]
    Path(log).write_text("began\n")
    assert run_on_node(words, str(tmp_path), {"X": "here"}, printed, log) == (3, "")
    assert Path(printed).read_text() == "here\n"
    assert Path(log).read_text().startswith("began\non ")


def test_node_that_does_not_see_the_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_ANSWER", 0.2)
    code, why = run_on_node(["own", "true"], "/", {}, str(tmp_path / "no/p.out"), str(tmp_path / "no/p.log"))
    assert code == 1
    assert "every node must see the folder of the sweep" in why


class Lost(Exception):
    """Stands for the errors of Ray."""


def fake_ray(outcome: Any) -> Any:
    """A module `ray` whose only task has ended with `outcome`, a result or an error."""

    def get(_: object) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    kinds = {name: type(name, (Lost,), {}) for name in ("TaskCancelledError", "WorkerCrashedError", "OutOfMemoryError")}
    names = {"NodeDiedError": Lost, "LocalRayletDiedError": Lost, "RayError": Exception}
    return SimpleNamespace(
        exceptions=SimpleNamespace(**kinds, **names), wait=lambda tasks, timeout: (tasks, []), get=get
    )


def test_outcomes_of_tasks_are_exit_codes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert RayProcess(fake_ray((4, "")), None, log).wait() == 4
    assert not log.exists()
    assert RayProcess(fake_ray(Lost()), None, log).wait() == LOST
    assert RayProcess(fake_ray(ValueError("no module raymine\nmore")), None, log).wait() == 1
    assert [line.split(" ", 1)[1] for line in log.read_text().splitlines()] == [
        "the node or the worker of Ray that ran it was lost.",
        "no module raymine.",
    ]


@pytest.mark.parametrize("call", ["poll", "terminate", "kill"])
def test_lost_cluster_is_an_error_in_a_sentence(call: str, tmp_path: Path) -> None:
    ray = fake_ray(None)

    def lost(*_: object, **__: object) -> Any:
        raise ConnectionError("the head is gone\nmore")

    ray.wait = ray.cancel = lost
    with pytest.raises(RunError, match=r"The Ray cluster does not answer any more: the head is gone\.\n.*goes on"):
        getattr(RayProcess(ray, None, tmp_path / "log"), call)()


@pytest.mark.parametrize("started", [False, True])
def test_cancelled_task_leaves_no_command_behind(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel is a KeyboardInterrupt, which may come before, while or after the command is started."""
    log = tmp_path / "p.log"
    log.touch()
    ended: list[str] = []
    command = SimpleNamespace(terminate=lambda: ended.append("asked"), wait=lambda *_: -15)

    class Files:
        """Stands for the file of the log, whose closing is what a cancel interrupts."""

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Any:
            return SimpleNamespace(write=len, flush=lambda: None)

        def __exit__(self, *_: object) -> None:
            raise KeyboardInterrupt

    def start(*_: object, **__: object) -> Any:
        if not started:
            raise KeyboardInterrupt
        return command

    monkeypatch.setattr(ray_cluster.subprocess, "Popen", start)
    monkeypatch.setattr(ray_cluster, "open", Files, raising=False)
    arguments = (["own", "true"], str(tmp_path), {}, str(tmp_path / "p.out"), str(log))
    if started:
        assert run_on_node(*arguments) == (-15, "")
        assert ended == ["asked"]
    else:
        with pytest.raises(KeyboardInterrupt):
            run_on_node(*arguments)


@pytest.mark.parametrize(("losses", "starts", "state"), [(3, 4, "done"), (99, 11, "failed")])
def test_lost_machines_do_not_count_as_failures_of_the_trial(
    losses: int, starts: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def start(words: list[str], folder: Path, printed: Path, log: Path) -> Any:
        started.append(1)
        code = LOST if len(started) <= losses else 0
        return SimpleNamespace(stdin=None, returncode=code, poll=lambda: code)

    scene = SceneSpec("one", "builtin")
    task = Task(scene, OwnStage("x", ("true",), (), (), tmp_path), (), tmp_path / "one")
    pipeline = Pipeline(tmp_path / "f", tmp_path, (scene,), retries=0, backoff=0.0)
    told: list[str] = []
    done: PipelineResult = run_tasks(pipeline, [task], jobs=None, tell=told.append, where=[Place("x", start=start)])
    assert [each.state for each in done.tasks] == [state]
    assert len(started) == starts
    assert sum("started again elsewhere" in line for line in told) == min(losses, run._MOST_LOST)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ADDRESS"):
        # What the command sets is taken back at the end of the test.
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    write_scene_of_eight(Path("a"))
    Path("s.toml").write_text(SWEEP)


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--on", "ray", "--ray-address", "127.0.0.1:1"], "There is no Ray cluster at 127.0.0.1:1"),
        (["--on", "ray", "--ray-address", "nowhere"], "is not an address"),
        (["--on", "ray", "--ray-address", "127.0.0.1:99999"], "There is no Ray cluster at 127.0.0.1:99999"),
        (["--ray-address", "127.0.0.1:1"], "--ray-address is for --on ray"),
    ],
)
def test_cluster_that_is_not_there_is_refused(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert main(["sweep", "s.toml", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path("o").exists()


@pytest.mark.usefixtures("scene")
def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", "s.toml", "--on", "ray"]) == 7
    said = capsys.readouterr().err
    assert "raymine[ray]" in said
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not Path("o").exists()
