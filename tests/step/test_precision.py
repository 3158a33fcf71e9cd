"""Half precision and recomputed activations in the plain step: dtypes, gradients, memory, and early errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raymine import recipes
from raymine.cli import main
from raymine.cli.training import narrate
from raymine.config import replace_fields
from raymine.contracts import Draws, Rays, StepReport
from raymine.engines import problem_with
from raymine.engines.fused import problem
from raymine.errors import ConfigError
from raymine.experiment import RunResult, TrainRequest, train
from raymine.experiment import prepare as preparing
from raymine.experiment.memory import ImagePlace, estimate_bytes
from raymine.fields import hash_field
from raymine.kernels import dispatch
from raymine.mining import MiningConfig
from raymine.render import query_points
from raymine.step import TrainConfig, TrainState, create_state, precision, train_step
from raymine.step.batch import draw_batch
from raymine.step.config import Amp
from raymine.step.mined import backward
from raymine.step.precision import TorchField, amp_problem, trial_problem
from support.disc_scene import write_scene
from support.killed_run import TINY
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
HALF: dict[Amp, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
# `prune` drops samples only if `faint` is above 0.
POLICIES = {name: MiningConfig(policy=name, faint=2e-3) for name in ("none", "prune", "hard")}  # type: ignore[arg-type]

every_policy = pytest.mark.parametrize("policy", POLICIES)
every_half = pytest.mark.parametrize("amp", HALF)


def fresh(amp: Amp = "auto", policy: str = "hard", recompute: int = 0) -> TrainState:
    """A new state. Skips the test if this processor cannot multiply in the given type, which would kill the process."""
    reason = amp_problem(amp, CPU)
    if reason:
        pytest.skip(reason)
    config = replace(CONFIG, amp=amp, recompute_samples=recompute, mining=POLICIES[policy])
    state = create_state(config, DATA, seed=0, device=CPU)
    state.horizon = 200
    return state


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """The tensors of a state after 100 steps in float32, so that gradients are not close to 0."""
    state = fresh()
    advance(state, 100)
    return {name: value.clone() for name, value in state.tensors().items()}


def advance(state: TrainState, n: int) -> list[StepReport]:
    return [train_step(state, DATA) for _ in range(n)]


def gradients(state: TrainState, trained: dict[str, Tensor], missing: bool = False) -> dict[str, Tensor]:
    """Dense gradients by parameter of one step with 64 rays from the trained tensors; `missing`: rays hit nothing."""
    own = state.tensors()
    state.restore({name: trained.get(name, value).clone() for name, value in own.items()}, {**state.scalars()})
    state.rays, state.step, state.sampler.swept = 64, 101, True
    state.sampler.changed()
    batch = draw_batch(state, DATA)
    rays = batch.rays
    if missing:
        batch = batch._replace(rays=Rays(rays.origins + 100, rays.directions, rays.near, rays.far))
    rounds = state.sampler.sample(batch.rays)
    samples = rounds.samples
    assert len(samples) == 0 if missing else len(samples) > 1000
    _, kept, _ = backward(state, batch, rounds, precision.fields_for_step(state.config, state.field))
    assert missing or (kept < len(samples)) == (state.config.mining.policy != "none")
    found = {name: p.grad for name, p in state.field.named_parameters() if p.grad is not None}
    return {name: grad.to_dense() if grad.is_sparse else grad for name, grad in found.items()}


def test_sparse_table_gradients_of_chunks_are_coalesced(trained: dict[str, Tensor]) -> None:
    state = fresh("auto", "hard", 97)
    gradients(state, trained)
    grad = state.field.table.grad
    assert grad is not None
    assert grad.is_sparse
    assert grad.is_coalesced()
    rows = grad._indices()[0]
    assert len(rows) == len(rows.unique())


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare the gradients of each parameter by relative norm."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype is torch.float32
        assert float((found[name] - value).norm()) <= tolerance * float(value.norm()), name


class Products(TorchDispatchMode):
    """Records the dtypes of matrix products, and counts numbers read from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.types |= {out.dtype, *(a.dtype for a in args if isinstance(a, Tensor))}
        self.reads += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return out


def test_half_precision_training_reaches_the_psnr_of_float32() -> None:
    """80 steps from the same start end within 0.3 dB of float32, under every policy."""
    for policy in POLICIES:
        psnr = {}
        for amp in ("auto", *HALF):
            reports = advance(fresh(amp, policy), 80)  # type: ignore[arg-type]
            assert all(r.finite for r in reports)
            end = sum(r.mse for r in reports[-5:]) / 5
            assert end < 0.5 * reports[0].mse
            psnr[amp] = -10 * math.log10(end)
        assert max(psnr.values()) - min(psnr.values()) < 0.3, (policy, psnr)


def test_field_is_evaluated_along_rays_only_with_a_kernel_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of that kernel would encode in plain torch, even on a GPU that has a kernel for the encoding."""
    state = fresh()
    assert state.field.along_rays
    asked = []
    monkeypatch.setattr(hash_field, "infer", lambda *_, **__: asked.append(1))
    rays = DATA.rig.rays_for_image(0)
    with dispatch.force("reference"):
        assert not state.field.along_rays
        train_step(state, DATA)
        state.renderer().render(rays, torch.ones(3))
    assert not asked


@every_policy
def test_kernel_and_reference_give_the_same_gradients(policy: str, trained: dict[str, Tensor]) -> None:
    state = fresh(policy=policy)
    expected = gradients(state, trained)
    with dispatch.force("reference"):
        got = gradients(state, trained)
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=1e-3, atol=1e-4 * float(value.abs().max())), name


def test_fp32_and_auto_are_bit_identical_on_a_cpu() -> None:
    a, b = fresh("auto"), fresh("fp32")
    assert advance(a, 8) == advance(b, 8)
    assert all(torch.equal(value, b.tensors()[name]) for name, value in a.tensors().items())


@every_policy
@every_half
@pytest.mark.parametrize("recompute", [0, 300])
def test_matrix_products_have_the_amp_dtype_and_all_else_is_float32(
    amp: Amp, policy: str, recompute: int, trained: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    inner = TorchField._outputs

    def spy(self: TorchField, *args: Any) -> tuple[Tensor, Tensor]:
        outputs.append(inner(self, *args))
        return outputs[-1]

    monkeypatch.setattr(TorchField, "_outputs", spy)
    state = fresh(amp, policy, recompute)
    with Products() as products:
        gradients(state, trained)
    assert products.types == {HALF[amp]}
    assert outputs
    assert {part.dtype for pair in outputs for part in pair} == {torch.float32}
    advance(state, 2)
    assert {value.dtype for name, value in state.tensors().items() if value.is_floating_point()} == {torch.float32}


@every_half
def test_occupancy_grid_is_updated_in_float32(amp: Amp, trained: dict[str, Tensor]) -> None:
    whole, half = fresh(), fresh(amp, recompute=1000)
    for state in (whole, half):
        gradients(state, trained)
        with Products() as products:
            draws = Draws(state.seed, 104, CPU)
            state.sampler.before_step(precision.field_for_occupancy(state.config, state.field), draws, None)
        assert products.types == {torch.float32}
    assert torch.allclose(whole.sampler.values, half.sampler.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("amp", "tolerance"), [("fp16", 0.02), ("bf16", 0.1)])
@pytest.mark.parametrize("policy", ["none", "prune"])
def test_half_precision_gradients_match_float32_for_any_loss_scale(
    amp: Amp, tolerance: float, policy: str, trained: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(fresh("fp32", policy), trained)
    found = gradients(fresh(amp, policy), trained)
    assert_near(found, expected, tolerance)
    monkeypatch.setattr(precision, "FP16_LOSS_SCALE", 4 * precision.FP16_LOSS_SCALE)
    assert_near(gradients(fresh(amp, policy), trained), found, 1e-3)


def test_loss_scale_does_not_change_gradients_of_mined_samples(
    trained: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gradients(fresh("fp16"), trained)
    monkeypatch.setattr(precision, "FP16_LOSS_SCALE", 4 * precision.FP16_LOSS_SCALE)
    assert_near(gradients(fresh("fp16"), trained), found, 1e-3)


@every_policy
def test_float16_overflow_is_reported_and_leaves_parameters_unchanged(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = fresh("fp16", policy)
    advance(state, 2)
    field = {name: value.clone() for name, value in state.tensors().items() if name.startswith(("field.", "adam."))}
    with monkeypatch.context() as patch:
        patch.setattr(precision, "FP16_LOSS_SCALE", 2.0**60)
        report = train_step(state, DATA)
    assert not report.finite
    assert math.isfinite(report.loss)
    assert all(torch.equal(value, state.tensors()[name]) for name, value in field.items())
    assert (state.step, state.optimiser.updates) == (3, 2)
    assert train_step(state, DATA).finite


def test_finite_gate_checks_loss_and_gradients_without_reading_the_device() -> None:
    state = fresh()
    for parameter in state.field.parameters():
        parameter.grad = torch.zeros_like(parameter)
    loss = torch.tensor(1.0)
    with Products() as products:
        gate = state.optimiser.gate(loss)
    assert gate
    assert products.reads == 0
    assert not state.optimiser.gate(loss * math.nan)
    assert state.field.table.grad is not None
    state.field.table.grad[3, 1] = -math.inf
    assert not state.optimiser.gate(loss)
    assert not state.optimiser.gate(loss * math.inf)


@every_policy
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("recompute", [97, 1 << 20])
def test_recomputed_activations_give_the_same_gradients(
    policy: str, backend: dispatch.Backend, recompute: int, trained: dict[str, Tensor]
) -> None:
    with dispatch.force(backend):
        expected = gradients(fresh("auto", policy), trained)
        # Sums over samples run in another order, which changes them by at most 1.1e-6 in float32 here.
        assert_near(gradients(fresh("auto", policy, recompute), trained), expected, 2e-6)


@every_policy
@pytest.mark.parametrize("amp", ["auto", *HALF])
def test_rays_without_samples_have_zero_gradients(amp: Amp, policy: str, trained: dict[str, Tensor]) -> None:
    expected = gradients(fresh("auto", policy), trained, missing=True)
    assert not any(value.any() for value in expected.values())
    for recompute in (0, 100):
        assert_near(gradients(fresh(amp, policy, recompute), trained, missing=True), expected, 0.0)


@every_half
def test_half_precision_works_with_recomputed_activations(amp: Amp, trained: dict[str, Tensor]) -> None:
    expected = gradients(fresh(amp, "none"), trained)
    # A layer's gradient is rounded to the half type once per chunk.
    assert_near(gradients(fresh(amp, "none", 300), trained), expected, 0.01)
    reports = advance(fresh(amp, "hard", 300), 60)
    assert reports[-1].mse < 0.5 * reports[0].mse


@contextmanager
def saved_bytes(state: TrainState) -> Iterator[list[int]]:
    """Yields a list whose sum is the bytes that autograd stores, without parameters; shared storage counts once."""
    counted: list[int] = []
    seen = {p.untyped_storage().data_ptr() for p in state.field.parameters()}
    held = []

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            counted.append(storage.nbytes())
            held.append(value)  # so that no other tensor gets its address
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        yield counted


def test_recomputation_stores_less_than_a_tenth(trained: dict[str, Tensor]) -> None:
    stored = []
    for recompute in (0, 256):
        state = fresh("auto", "none", recompute)
        gradients(state, trained)
        rays = DATA.rig.rays_for_image(0)
        samples = state.sampler.sample(rays).samples
        query = query_points(rays, samples)
        with saved_bytes(state) as counted:
            output = precision.fields_for_step(state.config, state.field).training.forward(query)
        assert output.density.requires_grad
        stored.append(sum(counted))
    assert stored[0] > 300 * len(samples)
    assert stored[1] < 0.1 * stored[0]


def test_invalid_amp_or_recompute_samples_raise() -> None:
    with pytest.raises(ConfigError, match="`amp` must be one of auto, fp32, fp16, bf16; got 'fp8'"):
        TrainConfig(amp="fp8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`recompute_samples` must be 0"):
        TrainConfig(recompute_samples=-1)
    with pytest.raises(ConfigError, match="amp"):
        replace_fields(CONFIG, {"amp": "half"})


CUDA = recipes.build("ngp", SCENE, "cuda")


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there is a GPU and that Triton works."""
    monkeypatch.setattr(problem, "triton_problem", lambda: "")
    monkeypatch.setattr(dispatch, "triton_problem", lambda: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.usefixtures("_with_triton")
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CUDA, ""),
        (replace(CUDA, amp="fp16"), ""),
        (replace(CUDA, amp="fp32"), "the fused step computes in float16, and amp is fp32"),
        (replace(CUDA, amp="bf16"), "the fused step computes in float16, and amp is bf16"),
        (replace(CUDA, recompute_samples=9), "the fused step stores no activations, so there is nothing to recompute"),
    ],
)
def test_problem_with_names_unsupported_precision_settings(config: TrainConfig, reason: str) -> None:
    assert problem_with(config, "cuda", training=True) == reason
    assert problem_with(config, "cuda", training=False) == ""


@pytest.mark.usefixtures("_with_triton")
def test_auto_device_is_cuda_in_any_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "load_scene", lambda *_, **__: SCENE)
    monkeypatch.setattr(preparing, "scene_digest", lambda _: "digest")
    monkeypatch.setattr(preparing, "place_images", lambda *_, **__: ImagePlace())
    asked = []
    monkeypatch.setattr(preparing, "amp_problem", lambda amp, device: asked.append((amp, device.type)) or "")
    for overrides in ({"amp": "bf16"}, {"amp": "fp16"}, {"amp": "fp32"}):
        found = preparing.prepare(TrainRequest("ball", device="auto", steps=1, overrides=overrides))
        assert found.config.device == "cuda"
        assert asked[-1] == (overrides["amp"], "cuda")


def test_precision_that_the_cpu_lacks_raises_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    trial_problem.cache_clear()
    try:
        request = TrainRequest(
            write_scene(tmp_path / "scene"), out=tmp_path / "run", steps=1, device="cpu", overrides={"amp": "bf16"}
        )
        with pytest.raises(ConfigError, match=r"`amp='bf16'`: torch .* cannot multiply in bfloat16 .* SIGILL"):
            train(request)
        assert not (tmp_path / "run").exists()
        monkeypatch.setattr(precision, "TRIAL", "raise RuntimeError('no kernel for {dtype}')")
        assert "RuntimeError: no kernel for float16" in amp_problem("fp16", CPU)
        assert amp_problem("auto", CPU) == amp_problem("fp32", CPU) == ""
    finally:
        trial_problem.cache_clear()


def test_bfloat16_needs_a_gpu_with_native_support(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    for native, reason in ((True, ""), (False, "bfloat16 needs a GPU of compute capability 8.0 or newer")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native)
        assert amp_problem("bf16", cuda) == reason
        assert amp_problem("fp16", cuda) == amp_problem("auto", cuda) == ""


def test_command_line_passes_amp_and_recompute_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[TrainRequest] = []

    def catch(request: TrainRequest, *, verbose: bool, also: object, ranks: object) -> RunResult:
        requests.append(request)
        return RunResult(Path("r"), "stopped", 130, 1, 0.0, None)

    monkeypatch.setattr(narrate, "narrated_train", catch)
    assert main(["train", "ball", "--amp", "bf16", "--recompute-samples", "65536"]) == 130
    assert main(["train", "ball"]) == 130
    config = replace_fields(CONFIG, requests[0].overrides)
    assert (config.amp, config.recompute_samples) == ("bf16", 65536)
    assert replace_fields(CONFIG, requests[1].overrides) == CONFIG


def test_resume_with_other_amp_or_recompute_samples_raises(tmp_path: Path) -> None:
    fresh("bf16")
    scene = write_scene(tmp_path / "scene")
    overrides = {**TINY, "amp": "bf16", "recompute_samples": 500}
    request = TrainRequest(
        scene, out=tmp_path / "run", steps=4, device="cpu", overrides=overrides, evaluate_views=0, resume=True
    )
    train(request)
    stored = json.loads((tmp_path / "run/config.json").read_text())["train"]
    assert (stored["amp"], stored["recompute_samples"]) == ("bf16", 500)
    assert train(replace(request, steps=6)).step == 6
    with pytest.raises(ConfigError, match=r'train\.amp: "bf16" in the run, "auto" asked'):
        train(replace(request, steps=8, overrides={**TINY, "recompute_samples": 500}))
    with pytest.raises(ConfigError, match=r"train\.recompute_samples: 500 in the run, 0 asked"):
        train(replace(request, steps=8, overrides={**TINY, "amp": "bf16"}))


def test_memory_estimate_is_lower_with_recomputation() -> None:
    whole, pieces = (
        estimate_bytes(replace(CUDA, amp="fp32", recompute_samples=n), SCENE.bounds, "cuda") for n in (0, 1 << 16)
    )
    assert 2 * pieces < whole
    assert estimate_bytes(replace(CUDA, amp="fp32", recompute_samples=1 << 30), SCENE.bounds, "cuda") >= whole
