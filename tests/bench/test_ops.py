"""`raymine bench ops`: rows, ratios to the reference, rejection of wrong results, and the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raymine.bench import OpRow, OpsRequest, bench_ops, ops
from raymine.bench._op_cases import MAKERS
from raymine.bench._op_inputs import Case, Maker, RandomInputs, Sizes
from raymine.cli import main
from raymine.config import from_json, to_json
from raymine.errors import ConfigError, RaymineError, ResourceError
from raymine.kernels import dispatch
from raymine.kernels.composite import cpu as composite_cpu
from raymine.kernels.select import cpu as select_cpu

CPU = torch.device("cpu")
TINY = Sizes(samples=200, log2_entries=8, resolution=16, device=CPU)
QUICK = OpsRequest("select,composite", samples=512, device="cpu", seconds=0.0)
CASES = [(op, maker) for op, makers in MAKERS.items() for maker in makers]


@pytest.fixture
def fixed_times(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fake times: 8 ms per reference call, 2 ms per other call. Returns the backends in the order of timing."""
    order: list[str] = []

    def clock(run: Callable[[], object], calls: int, device: torch.device) -> list[float]:
        backend = dispatch.explain_one("select", "cpu").backend
        order.append(backend)
        return [8.0 if backend == "reference" else 2.0] * calls

    monkeypatch.setattr(ops, "clock", clock)
    return order


def test_every_dispatched_op_is_benchmarked() -> None:
    assert set(ops.OPS) == set(dispatch.BACKENDS)


@pytest.mark.parametrize(("op", "maker"), CASES, ids=[f"{op}-{i}" for i, (op, _) in enumerate(CASES)])
def test_case_inputs_repeat_and_backend_matches_reference(op: str, maker: Maker) -> None:
    results = []
    for backend in ("reference", "reference", dispatch.explain_one(op, "cpu").backend):
        case = maker(TINY)
        with dispatch.force(backend):  # type: ignore[arg-type]
            results.append(case.compared(case.prepare()()))
    first, again, other = results
    for name, expected in first.items():
        assert expected.double().norm() > 0, name
        assert torch.equal(again[name], expected), name
        assert ops.deviation(other[name], expected) <= case.bound, name
    assert case.moved is None or case.moved > 0


def test_march_grid_is_three_per_cent_occupied_in_clusters() -> None:
    grid = RandomInputs(TINY).blobs(32)
    assert float(grid.cells.float().mean()) == pytest.approx(0.03, abs=1e-3)
    assert 0 < int(grid.blocks.sum()) < grid.blocks.numel()


def test_rows_have_every_field_and_round_trip_through_json() -> None:
    rows = bench_ops(QUICK)
    assert [(row.op, row.direction, row.backend) for row in rows] == [
        (op, direction, backend)
        for op, direction in (("composite", "forward"), ("composite", "backward"), ("select", "forward"))
        for backend in ("reference", "cpu")
    ]
    for row in rows:
        data = json.loads(json.dumps(to_json(row)))
        assert set(data) == {field.name for field in fields(OpRow)}
        assert from_json(OpRow, data) == row
        assert row.benchmark == "ops"
        assert row.shapes["samples"] == 512
        assert row.repeats >= ops.LEAST
        assert 0 < row.low_ms <= row.median_ms <= row.high_ms
        assert row.environment.device.startswith("cpu")
        assert row.reason == ("forced" if row.backend == "reference" else "Numba kernels use all cores")
        assert row.checked == 0 if row.backend == "reference" else row.checked < 1e-3


def test_ratio_is_relative_to_the_reference_of_the_same_shape(fixed_times: list[str]) -> None:
    rows = bench_ops(QUICK)
    for row in rows:
        own = 8.0 if row.backend == "reference" else 2.0
        assert (row.low_ms, row.median_ms, row.high_ms) == (own, own, own)
        assert row.ratio_to_reference == 8.0 / own
    # 512 samples in 16 rays: 1 byte per sample, 8 bytes per kept sample and 24 bytes per ray, in 2 ms.
    select = rows[-1]
    assert select.gbytes_per_s == pytest.approx((512 + 8 * select.shapes["kept"] + 24 * 16) / 2e-3 / 1e9)


def test_backends_are_timed_alternately_with_at_least_the_minimum_repeats(fixed_times: list[str]) -> None:
    runs: dict[dispatch.Backend, ops.TimedCall] = {"reference": dict, "cpu": dict}
    times = ops.take_turns(runs, 0.0, CPU)
    assert {name: set(found) for name, found in times.items()} == {"reference": {8.0}, "cpu": {2.0}}
    assert min(map(len, times.values())) >= ops.LEAST
    assert fixed_times == ["reference", "cpu"] * (len(fixed_times) // 2)
    del fixed_times[:]
    times = ops.take_turns(runs, math.inf, CPU)
    assert min(map(len, times.values())) >= ops.MOST


def test_missing_backend_times_the_reference_only_and_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "numba_problem", lambda: "no Numba here")
    (row,) = bench_ops(OpsRequest("select", samples=64, device="cpu", seconds=0.0))
    assert (row.backend, row.reason, row.ratio_to_reference) == ("reference", "no Numba here", 1.0)


def test_wrong_result_raises_before_timing(
    monkeypatch: pytest.MonkeyPatch, fixed_times: list[str], tmp_path: Path
) -> None:
    real = select_cpu.compact

    def one_off(*arguments: Any) -> Any:
        index, kept = real(*arguments)
        return index.roll(1), kept

    monkeypatch.setattr(select_cpu, "compact", one_off)
    request = OpsRequest("select", samples=64, device="cpu", out=tmp_path / "rows.jsonl")
    with pytest.raises(RaymineError, match=r"select \(forward\) on `cpu`: `index` deviates .* at most 0 is allowed"):
        bench_ops(request)
    assert not fixed_times
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spoil", [math.nan, 1.01], ids=str)
def test_nan_or_one_per_cent_error_raises(spoil: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = composite_cpu.forward

    def spoilt(*arguments: Any) -> Any:
        colour, *rest = real(*arguments)
        return colour * spoil, *rest

    monkeypatch.setattr(composite_cpu, "forward", spoilt)
    with pytest.raises(RaymineError, match="`colour` deviates"):
        bench_ops(OpsRequest("composite", samples=64, device="cpu"))


def test_deviation_is_relative_and_infinite_if_not_comparable() -> None:
    assert ops.deviation(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)
    assert ops.deviation(torch.zeros(2), torch.zeros(2)) == 0
    assert ops.deviation(torch.ones(2), torch.zeros(2)) > 1
    for bad in (None, torch.ones(3), torch.tensor([1.0, math.inf])):
        assert ops.deviation(bad, torch.ones(2)) == math.inf


def test_parse_ops_orders_deduplicates_and_rejects_empty_lists() -> None:
    assert ops.parse_ops("select, march,select") == ("march", "select")
    assert ops.parse_ops(None) == ops.OPS
    with pytest.raises(ConfigError, match="names no op"):
        ops.parse_ops(" ,")


def test_out_of_memory_raises_resource_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(sizes: Sizes) -> Case:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setitem(ops.MAKERS, "select", (greedy,))
    with pytest.raises(ResourceError, match="select: Out of memory on cpu") as caught:
        bench_ops(OpsRequest("select", device="cpu"))
    assert caught.value.hint == "Try fewer `samples`."


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["ops", "--ops", "marsh"], 2, "there is no op `marsh`. Did you mean `march`?\nOps: philox, hash_grid"),
        (["ops", "--ops", "select,"], 2, "--device cuda: torch sees no CUDA device"),
        (["ops", "--ops", ","], 2, "names no op"),
        (["ops", "--ops", ""], 2, "the value of --ops is missing or empty."),
        (["ops", "--samples", "0"], 2, "--samples must be in 1 .. 2^22, got 0."),
        (["ops", "--out", "."], 4, "is a folder"),
        (["ops", "builtin"], 2, "`raymine bench ops` takes no such argument: `builtin`."),
        (
            ["ops", "--seconds", "3"],
            2,
            "`raymine bench ops` has no option --seconds. It is an option of `raymine demo`,",
        ),
        (["ops", "--no-page"], 2, "It is an option of `raymine bench mining`."),
        (
            ["ops", "--resume"],
            2,
            "no option --resume. It is an option of `raymine train`, `raymine reproduce` and `raymine bench mining`.",
        ),
        (["step", "builtin", "--ops", "march"], 2, "`raymine bench step` has no option --ops."),
        (["mining", "builtin", "--samples", "8"], 2, "`raymine bench mining` has no option --samples."),
        (["step"], 2, "`raymine bench step` needs its argument SCENE."),
        (["mining"], 2, "`raymine bench mining` needs its argument SCENE."),
        (["opps"], 2, "no benchmark `opps`. Did you mean `ops`?"),
    ],
)
def test_invalid_request_exits_with_code_and_message(
    options: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", *options, "--device", "cuda"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert not list(tmp_path.iterdir())


def test_rows_are_appended_to_a_file_in_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "rows.jsonl"
    arguments = ["bench", "ops", "--ops", "select", "--samples", "512", "--device", "cpu", "--out", str(file)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "x reference" in out
    assert "512 samples, 16 rays" in out
    assert "select" in err
    assert f"Rows: {file}" in err
    before = file.read_text()
    assert main(arguments) == 0
    assert file.read_text().startswith(before)
    assert [json.loads(line)["backend"] for line in file.read_text().splitlines()] == ["reference", "cpu"] * 2


def test_json_option_prints_rows_of_the_selected_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ops", "--ops", "select,composite", "--samples", "512", "--device", "cpu", "--json"]) == 0
    rows = [from_json(OpRow, row) for row in json.loads(capsys.readouterr().out)]
    assert {row.op for row in rows} == {"select", "composite"}
    assert np.isfinite([row.ratio_to_reference for row in rows]).all()
    assert all(row.gbytes_per_s is not None for row in rows)
