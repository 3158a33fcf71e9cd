"""Whole runs on a tiny Blender scene: training, run folder, resume, errors, and loading of a run."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raymine import checkpoint
from raymine.config import RunConfig
from raymine.errors import ConfigError, RaymineError, ResourceError, RunError, SceneError
from raymine.experiment import (
    Replay,
    RunResult,
    SilentObserver,
    StartInfo,
    StepInfo,
    TrainRequest,
    load_run,
    resolve_device,
    train,
    work,
)
from raymine.metrics_log import read_rows
from raymine.rundir import RunDir, list_runs, summarise_run
from raymine.step import TrainConfig
from support.disc_scene import write_scene, write_scene_of_eight
from support.fake_training import deterministic
from support.killed_run import TINY
from support.runs import StopAt, request


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_scene(tmp_path / "scene")


def test_quick_protocol_is_that_of_the_score_in_the_manifest(tmp_path: Path) -> None:
    scene = write_scene_of_eight(tmp_path / "eight")

    def views(steps: int, evaluate_views: int) -> object:
        again = request(scene, tmp_path / "run", steps, resume=True, evaluate_views=evaluate_views)
        train(again)
        return (RunDir.open(tmp_path / "run").read_manifest().quick_protocol or {}).get("views")

    assert views(8, 2) == 2
    # Nothing is evaluated anew: the score is still that of two views.
    assert views(8, 1) == 2
    assert views(16, 1) == 1
    # There is no score at the last step.
    assert views(24, 0) is None


class Starts(SilentObserver):
    def __init__(self) -> None:
        self.seen: list[StartInfo] = []

    def on_start(self, info: StartInfo) -> None:
        self.seen.append(info)


def test_stopped_and_resumed_run_equals_uninterrupted_run_and_loads(tmp_path: Path, scene: Path) -> None:
    whole = train(request(scene, tmp_path / "whole"))
    first = train(request(scene, tmp_path / "parts"), observer=StopAt(16))
    # A process killed later would leave rows after the step of the checkpoint, and half a row.
    with open(tmp_path / "parts/metrics.jsonl", "a") as log:
        log.write('{"kind": "train", "step": 32, "loss": 9.0}\n{"kind": "tr')
    second = train(request(scene, tmp_path / "parts", resume=True))
    repairs = [row["data"] for row in read_rows(tmp_path / "parts/events.jsonl") if row["kind"] == "metrics-repair"]
    assert repairs == [{"later": 1, "unreadable": 1}]
    assert (whole.status, whole.step, whole.exit_code) == ("finished", 40, 0)
    assert (first.status, first.step, first.exit_code) == ("stopped", 16, 130)
    assert (second.status, second.step, second.exit_code) == ("finished", 40, 0)
    assert second.test_psnr == whole.test_psnr is not None
    saved = [checkpoint.load_latest(tmp_path / name / "checkpoints") for name in ("whole", "parts")]
    assert saved[0] is not None
    assert saved[1] is not None
    a, b = saved[0].checkpoint, saved[1].checkpoint
    assert a.scalars == b.scalars
    assert a.tensors.keys() == b.tensors.keys()
    assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    rows = [deterministic(read_rows(tmp_path / name / "metrics.jsonl")) for name in ("whole", "parts")]
    assert rows[0] == rows[1]
    loaded = load_run(tmp_path / "parts", device="cpu")
    assert loaded.step == 40
    assert all(torch.equal(value, b.tensors[name]) for name, value in loaded.state.tensors().items())
    fallback = load_run(tmp_path / "parts", which="best", device="cpu")
    assert fallback.step == 40
    assert fallback.notes == ("No view was held out, so nothing names a best checkpoint; using the newest, step 40.",)
    manifest = RunDir.open(tmp_path / "parts").read_manifest()
    assert (manifest.status, manifest.step, manifest.name) == ("finished", 40, "parts")
    # The PSNR of the last model has the same name everywhere.
    looks = [row for row in read_rows(tmp_path / "parts/metrics.jsonl") if row["kind"] == "eval"]
    assert looks[-1]["step"] == 40
    assert manifest.test_psnr == second.test_psnr == looks[-1]["psnr"]
    listed = summarise_run(tmp_path / "parts")
    assert listed.protocol == f"quick-{(manifest.quick_protocol or {})['digest']}"
    assert listed.protocol == summarise_run(tmp_path / "whole").protocol
    assert (listed.train_psnr, listed.test_psnr) == (second.train_psnr, second.test_psnr)
    assert [attempt.from_step for attempt in manifest.attempts] == [0, 16]
    assert all(attempt.ended for attempt in manifest.attempts)


def test_a_time_limited_run_is_reproduced_from_its_manifest(tmp_path: Path, scene: Path) -> None:
    timed = train(request(scene, tmp_path / "timed", steps=None, max_seconds=0.4, evaluate_views=0))
    manifest = RunDir.open(tmp_path / "timed").read_manifest()
    assert manifest.horizons
    assert manifest.step == timed.step
    replay = Replay(manifest.step, manifest.horizons, manifest.rollbacks)
    train(request(scene, tmp_path / "again", steps=None, replay=replay, evaluate_views=0))
    found = [load_run(tmp_path / name, device="cpu").state for name in ("timed", "again")]
    assert found[0].scalars() == found[1].scalars()
    for name, value in found[0].tensors().items():
        assert torch.equal(value, found[1].tensors()[name]), name


def test_time_limited_run_ends_after_max_useful_steps_and_can_be_extended(tmp_path: Path, scene: Path) -> None:
    starts = Starts()
    asked = request(scene, tmp_path / "run", steps=None, max_seconds=600.0, overrides={**TINY, "max_useful_steps": 21})
    assert (train(asked, observer=starts).step, RunDir.open(tmp_path / "run").read_manifest().status) == (
        21,
        "finished",
    )
    further = replace(asked, resume=True, max_seconds=None, steps=25)
    assert train(further, observer=starts).step == 25
    assert [start.max_useful_steps for start in starts.seen] == [21, 0]


def refused(asked: TrainRequest, kind: type[RaymineError], *words: str) -> None:
    """Training raises `kind` with every one of `words` in the message."""
    with pytest.raises(kind) as caught:
        train(asked)
    for word in words:
        assert word in str(caught.value)


def test_resume_rejects_other_configs_scenes_and_images(tmp_path: Path, scene: Path) -> None:
    run = tmp_path / "run"
    train(request(scene, run, steps=4))
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    refused(request(scene, run), RunError, "already holds a run", "resume=True")
    refused(request(scene, run, resume=True, seed=3), ConfigError, "seed: 0 in the run, 3 asked")
    smaller = {**TINY, "field.grid.levels": 3}
    refused(
        request(scene, run, resume=True, overrides=smaller),
        ConfigError,
        "train.field.grid.levels: 2 in the run, 3 asked",
    )
    shutil.copytree(scene, tmp_path / "other")
    text = (tmp_path / "other/transforms_train.json").read_text().replace("0.7", "0.8")
    (tmp_path / "other/transforms_train.json").write_text(text)
    refused(request(tmp_path / "other", run, resume=True), RunError, "another scene", str(scene))
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    write_scene(scene, shade=201)
    refused(request(scene, run, resume=True), RunError, "images", "have changed")
    write_scene(scene)
    # A copy of the scene in another folder is accepted, and more steps may be requested.
    shutil.copytree(scene, tmp_path / "moved")
    longer = train(request(tmp_path / "moved", run, steps=6, resume=True))
    assert longer.step == 6
    # A resume without a limit keeps the limit of the run.
    assert train(request(tmp_path / "moved", run, steps=None, resume=True)).step == 6


def test_invalid_request_creates_no_run_folder(tmp_path: Path, scene: Path) -> None:
    out = tmp_path / "run"
    refused(request(tmp_path / "nowhere", out), SceneError, "nowhere")
    refused(request(scene, out, recipe="npg"), ConfigError, "npg", "ngp")
    refused(
        request(scene, out, overrides={"field.grid.level": 3}), ConfigError, "field.grid.level", "field.grid.levels"
    )
    refused(request(scene, out, overrides={"field.grid.levels": "many"}), ConfigError, "field.grid.levels", "'many'")
    huge = {"field.grid.levels": 32, "field.grid.features": 8, "field.grid.log2_entries": 24, "field.grid.finest": 2048}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raymine.experiment.memory.available_bytes", lambda *_: 8 << 30)
        refused(request(scene, out, overrides=huge), ResourceError, "GiB of memory on cpu, and 8.0 GiB is free")
    (scene / "train/r_0.png").write_bytes((scene / "train/r_0.png").read_bytes()[:60])
    refused(request(scene, out), SceneError, "r_0.png")
    assert not out.exists()


def test_resume_starts_a_new_run_in_a_missing_folder_and_requires_out(tmp_path: Path, scene: Path) -> None:
    assert train(request(scene, tmp_path / "new", steps=2, resume=True)).step == 2
    refused(request(scene, None, resume=True), ConfigError, "`resume` needs `out`")


def test_damaged_newest_checkpoint_falls_back_with_a_warning(tmp_path: Path, scene: Path) -> None:
    run = tmp_path / "run"
    train(request(scene, run, steps=20))
    good = checkpoint.load_latest(run / "checkpoints")
    newest = run / "checkpoints/step-00000020.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    again = train(request(scene, run, steps=20, resume=True))
    assert again.step == 20
    events = [row for row in read_rows(run / "events.jsonl") if row["level"] == "warning"]
    assert [e["kind"] for e in events] == ["damaged-checkpoint", "fallback"]
    assert "were written" in events[0]["message"]
    now = checkpoint.load_latest(run / "checkpoints")
    assert good is not None
    assert now is not None
    assert all(torch.equal(v, now.checkpoint.tensors[k]) for k, v in good.checkpoint.tensors.items())
    steps = [row["step"] for row in read_rows(run / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_default_run_names_are_numbered_and_listed(
    tmp_path: Path, scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [train(request(scene, None, steps=1, evaluate_views=0)).run for _ in range(2)]
    assert names == [Path("runs/scene-ngp-1"), Path("runs/scene-ngp-2")]
    listed = list_runs(Path("runs"))
    assert [(r.name, r.status, r.step, r.recipe) for r in listed] == [
        ("scene-ngp-1", "finished", 1, "ngp"),
        ("scene-ngp-2", "finished", 1, "ngp"),
    ]


def test_failure_is_recorded_in_the_manifest_and_releases_the_lock(tmp_path: Path, scene: Path) -> None:
    class Broken(SilentObserver):
        def on_step(self, info: StepInfo) -> None:
            raise ResourceError("no space left for the observer")

        def on_end(self, result: RunResult) -> None:
            raise AssertionError("a failed run has no good end")

    with pytest.raises(ResourceError):
        train(request(scene, tmp_path / "run", steps=20), observer=Broken())
    manifest = RunDir.open(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.error) == ("failed", "no space left for the observer")
    assert manifest.ended is not None
    # The lock is free again.
    assert train(request(scene, tmp_path / "run", steps=20, resume=True)).status == "finished"


def test_load_run_rejects_missing_runs_and_changed_scenes(tmp_path: Path, scene: Path) -> None:
    with pytest.raises(RunError, match="no run folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="is not a run folder"):
        load_run(scene)
    train(request(scene, tmp_path / "run", steps=2))
    text = (scene / "transforms_train.json").read_text()
    (scene / "transforms_train.json").write_text(text.replace("0.7", "0.9"))
    with pytest.raises(RunError, match="has changed since"):
        load_run(tmp_path / "run", device="cpu")


def test_a_static_recipe_trains_a_dynamic_scene_with_a_warning(tmp_path: Path, scene: Path) -> None:
    for split in ("train", "test"):
        data = json.loads((scene / f"transforms_{split}.json").read_text())
        for i, frame in enumerate(data["frames"]):
            frame["time"] = i / 10
        (scene / f"transforms_{split}.json").write_text(json.dumps(data))
    seen: list[str] = []

    class Keep(SilentObserver):
        def on_start(self, info: StartInfo) -> None:
            seen.extend(info.warnings)

    asked = request(scene, tmp_path / "run", steps=2, recipe="ngp")
    assert train(asked, observer=Keep()).status == "finished"
    assert any("the recipe ngp is static" in warning for warning in seen)


def test_cuda_device_with_a_number_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert resolve_device("cuda") == torch.device("cuda")
    assert not chosen
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="there are 2 CUDA devices"):
        resolve_device("cuda:2")
    assert chosen == [torch.device("cuda:1")]


def test_resolve_device_accepts_cpu_and_rejects_unavailable_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no such device"):
        resolve_device("gpu")
    with pytest.raises(ConfigError, match="trains on cpu and cuda"):
        resolve_device("meta")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(ConfigError, match="`device='cuda'`: torch sees no CUDA device"):
            resolve_device("cuda")


def test_train_request_validates_its_arguments() -> None:
    with pytest.raises(ConfigError, match=r"`steps=5` and `max_seconds=3\.0` were both given"):
        TrainRequest("builtin", steps=5, max_seconds=3.0)
    for wrong in ({"steps": 0}, {"max_seconds": 0.0}, {"max_seconds": math.inf}, {"downscale": 0}, {"seed": -1}):
        with pytest.raises(ConfigError, match=f"`{next(iter(wrong))}` must"):
            TrainRequest("builtin", **wrong)  # type: ignore[arg-type]


def test_resumed_run_keeps_its_number_of_threads_unless_told_otherwise(tmp_path: Path, scene: Path) -> None:
    def resumed(out: str, **changes: object) -> tuple[str, ...]:
        train(request(scene, tmp_path / out, threads=2), observer=StopAt(16))
        starts = Starts()
        train(request(scene, tmp_path / out, resume=True, **changes), observer=starts)
        return starts.seen[0].warnings

    began = "began with 2 threads and continues"
    assert any(f"{began} with as many" in told and "`threads=1`" in told for told in resumed("kept"))
    assert any(f"{began} with 1:" in told for told in resumed("changed", threads=1))
    assert not any("threads" in told for told in resumed("same", threads=2))
    attempts = RunDir.open(tmp_path / "changed").read_manifest().attempts
    assert [attempt.environment.threads for attempt in attempts] == [2, 1]
    assert torch.get_num_threads() == 1


def test_impossible_number_of_threads_is_refused(tmp_path: Path, scene: Path) -> None:
    for count in (0, -1, 2000):
        with pytest.raises(ConfigError, match="`threads` must be between 1 and 1024"):
            request(scene, tmp_path / "run", threads=count)


@pytest.mark.parametrize(
    ("limit", "device", "short"),
    [
        ({"max_seconds": 1.5}, "cuda", True),
        ({"max_seconds": 60.0}, "cuda", False),
        ({"steps": 3000}, "cuda", True),
        ({"steps": 20_000}, "cuda", False),
        ({"steps": 10}, "cpu", False),
    ],
)
def test_only_short_runs_on_cuda_do_not_look_at_training_images(limit: dict, device: str, short: bool) -> None:
    config = RunConfig("builtin", "ngp", TrainConfig(), device=device, **limit)
    assert work._too_short_to_judge(config) is short
