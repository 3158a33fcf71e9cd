"""Runs on the fused engine: warm-up, choice of the kernel variant, timing, rendering, checkpoint and resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raymine import recipes
from raymine.config import Every, Schedule
from raymine.engines import ahead, choice
from raymine.engines.fused import engine
from raymine.engines.fused import graph as graph_module
from raymine.engines.fused import grid as grid_module
from raymine.engines.fused import rays as rays_module
from raymine.engines.fused import stages as stages_module
from raymine.engines.fused import trainer as trainer_module
from raymine.engines.fused.problem import NoRoomError
from raymine.engines.fused.timing import busy_share, stage_times
from raymine.experiment import TrainRequest, load_run, train
from raymine.experiment import prepare as preparing
from raymine.kernels.ngp_step.gpu import WAYS
from raymine.rays import rays_for_camera
from raymine.step import TrainConfig
from support.device import requires_gpu
from support.disc_scene import write_scene_of_eight
from support.fused import CONFIG, DEVICE, GPU, trainer_for

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import KernelInterface


def tiny(*_: object) -> TrainConfig:
    """A recipe for these tests."""
    return replace(CONFIG, deterministic=True)


@pytest.fixture
def _fused_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fused engine also on the CPU, in Triton's interpreter."""
    monkeypatch.setattr(choice, "problem_with", lambda *_, **__: "")
    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    # Rendering a picture takes a minute in the interpreter.
    schedule = Schedule(metrics=2, checkpoint=Every(steps=1), evaluate_views=1 if GPU else 0)
    monkeypatch.setattr(preparing, "_schedule", lambda *_: schedule)


class Noted:
    """Replaces a kernel: records its name and constants, which decide what is compiled, and computes nothing.

    The host never reads results, so the launches do not depend on them.
    """

    def __init__(self, name: str, launches: set[tuple[object, ...]]) -> None:
        self.name, self.launches = name, launches

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *arguments, **constants: self.launches.add((self.name, *sorted(constants.items())))


def noted_launches(monkeypatch: pytest.MonkeyPatch) -> set[tuple[object, ...]]:
    """Replace every kernel of a fused step by a `Noted`. -> the set that they fill."""
    launches: set[tuple[object, ...]] = set()
    for module in (trainer_module, graph_module, grid_module, stages_module, rays_module):
        for name, value in vars(module).items():
            if isinstance(value, KernelInterface | InterpretedFunction):
                monkeypatch.setattr(module, name, Noted(name, launches))
    return launches


@pytest.mark.parametrize("unbounded", [False, True])
def test_training_launches_only_kernels_that_warm_up_compiled(unbounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = noted_launches(monkeypatch)

    def fresh() -> engine.FusedEngine:
        trainer = trainer_for(unbounded=unbounded)
        return engine.FusedEngine(trainer.state, trainer.data)

    fresh().warm_up()
    ready = launches.copy()
    launches.clear()
    training = fresh()
    for _ in range(4):  # the occupancy grid updates all cells at step 4 and some at 8 and 12
        training.advance(4)
    assert {"draw", "march", "infer", "train", "visit"} <= {name for name, *_ in launches}
    assert launches <= ready


def changed_by(trainer: trainer_module.FusedTrainer, work: Callable[[], None]) -> list[str]:
    """Names of the saved tensors and numbers that `work` changes."""
    state = trainer.state
    tensors, scalars = {name: value.clone() for name, value in state.tensors().items()}, state.scalars()
    work()
    after, numbers = state.tensors(), state.scalars()
    changed = [name for name, value in tensors.items() if not torch.equal(value, after[name])]
    return changed + [name for name, value in scalars.items() if numbers[name] != value]


def test_rehearsal_restores_the_state_and_what_the_device_holds_of_it() -> None:
    trainer = trainer_for()
    rays, copies = trainer.n_rays.item(), trainer.model.table.clone()

    def rehearse() -> None:
        with trainer.rehearsal():
            trainer.state.field.table.data.zero_()
            trainer.state.step, trainer.state.rays, trainer.sampler.swept = 7, 3, True
            trainer.reload()
            assert trainer.n_rays.item() == 3

    assert changed_by(trainer, rehearse) == []
    assert trainer.n_rays.item() == rays
    assert trainer.step.item() == 0
    assert torch.equal(trainer.model.table, copies)


@requires_gpu
def test_warm_up_leaves_the_state_as_it_was() -> None:
    trainer = trainer_for()
    assert changed_by(trainer, engine.FusedEngine(trainer.state, trainer.data).warm_up) == []


@pytest.mark.parametrize("masked", [False, True])
def test_kernels_compiled_ahead_are_those_that_training_launches(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = noted_launches(monkeypatch)
    monkeypatch.setattr(ahead, "problem_with", lambda *_, **__: "")
    trainer = trainer_for()
    ahead.compile_ahead(CONFIG, trainer.data.rig, trainer.data.bounds, masked, DEVICE)()
    ready = launches.copy()
    launches.clear()
    if masked:
        assert ("MASKED", True) in {pair for launch in ready if launch[0] == "draw" for pair in launch[1:]}
        return
    for _ in range(4):
        trainer.advance(4)
    assert {"draw", "march", "infer", "train", "visit"} <= {name for name, *_ in launches}
    assert launches <= ready


def test_model_that_cannot_be_fused_is_not_compiled_ahead() -> None:
    trainer = trainer_for()
    plain = replace(CONFIG, engine="plain")
    assert ahead.compile_ahead(plain, trainer.data.rig, trainer.data.bounds, False, DEVICE)() is None


class Measured:
    """Replaces the `train` kernel: compiles nothing, and reports less shared memory for every further variant."""

    def warmup(self, *_: object, TILE: int, HELD: bool, **__: object) -> object:
        return SimpleNamespace(metadata=SimpleNamespace(shared=1000 * (TILE + 100 * HELD)))


@pytest.mark.parametrize(
    ("room", "capability", "warps", "way"),
    [
        (300, 9, 8, 0), (300, 9, 4, 1), (200, 8, 8, 1), (164, 8, 4, 1), (100, 8, 8, 2), (100, 9, 4, 3), (63, 8, 4, 3),
        (30, 8, 4, None),
    ],
)  # fmt: skip
def test_find_way_takes_the_fastest_variant_that_fits(
    room: int, capability: int, warps: int, way: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_for()
    trainer._warps = warps
    monkeypatch.setattr(trainer_module, "capability", lambda _: capability)
    monkeypatch.setattr(trainer_module, "train", Measured())
    monkeypatch.setattr(trainer_module, "shared_memory", lambda _: 1000 * room)
    monkeypatch.setattr(trainer.state, "device", SimpleNamespace(type="cuda"))
    if way is not None:
        assert trainer._find_way() == WAYS[way]
        return
    with pytest.raises(NoRoomError, match="needs 31 KB of shared memory, and this GPU has 29 KB"):
        trainer._find_way()


def test_too_little_shared_memory_falls_back_to_the_plain_step_with_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_way(_: object) -> None:
        raise NoRoomError("the fused step needs 90 KB")

    trainer = trainer_for()
    monkeypatch.setattr(choice, "problem_with", lambda *_, **__: "")
    monkeypatch.setattr(trainer_module.FusedTrainer, "_find_way", find_way)
    found = choice.engine_for(trainer.state, trainer.data)
    assert found.name == ("captured" if GPU else "plain")
    assert "the fused step needs 90 KB" in found.reason
    assert len(found.advance(1)) == 1


def test_metrics_interval_on_cuda_is_the_size_of_the_report_ring() -> None:
    on_cuda, on_cpu = (
        preparing._schedule(TrainRequest("builtin"), torch.device(kind), 1000, None) for kind in ("cuda", "cpu")
    )
    assert on_cuda.metrics == trainer_module.RING
    assert on_cpu == replace(on_cuda, metrics=Schedule().metrics)


@requires_gpu
def test_timing_covers_every_stage_and_does_not_advance_training() -> None:
    trainer = trainer_for()
    own = engine.FusedEngine(trainer.state, trainer.data)
    own.advance(40)
    assert busy_share(own.trainer) > 0
    step = trainer.state.step  # replays for timing do not count as steps
    assert [report.step for report in own.advance(3)] == [step, step + 1, step + 2]
    times = stage_times(own.trainer)
    assert {"draw", "march", "infer", "judge", "select", "train", "adam"} < set(times)
    assert all(time > 0 for time in times.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("_fused_anywhere")
def test_fused_run_renders_and_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.FusedEngine, "warm_up", lambda _: None)
    scene = write_scene_of_eight(tmp_path / "scene")
    steps = 40 if GPU else 2

    def request(out: str, resume: bool = False) -> TrainRequest:
        return TrainRequest(scene, steps=steps, device=DEVICE.type, out=tmp_path / out, resume=resume)

    whole = train(request("whole"))
    assert (whole.status, whole.step) == ("finished", steps)
    assert (whole.test_psnr is not None) == GPU
    run = load_run(whole.run, device=DEVICE.type)
    assert type(run.renderer).__name__ == "FusedRenderer"
    rays = rays_for_camera(run.scene.cameras[0], run.scene.frames[0].pose, run.scene.bounds, device=DEVICE)
    few = replace(rays, **{n: getattr(rays, n)[::61] for n in ("origins", "directions", "near", "far")})
    view = run.renderer.render(few, torch.ones(3, device=DEVICE))
    assert torch.isfinite(view.colour).all()
    # Remove the checkpoint of the last step, and train that step again.
    shutil.copytree(whole.run, tmp_path / "cut")
    for path in (tmp_path / "cut/checkpoints").glob(f"step-{steps:08d}.*"):
        path.unlink()
    resumed = train(request("cut", resume=True))
    assert resumed.step == steps
    again = load_run(resumed.run, device=DEVICE.type)
    for name, value in run.state.tensors().items():
        assert torch.equal(value, again.state.tensors()[name]), name
