"""`benchmarks/bench_poses.py`: its rows on a tiny scene, and that every policy that it knows can be trained."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from raymine.rundir import describe_environment
from raymine.scenes import load_scene
from support.rings import COUNT, write_ring

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "bench_poses.py"
    spec = importlib.util.spec_from_file_location("bench_poses", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(bench: ModuleType, tmp_path: Path, *words: str) -> list[dict[str, object]]:
    scene = write_ring(tmp_path / "ring")
    bench.main([str(scene), "--out", str(tmp_path / "rows.jsonl"), "--steps", "4", *words])
    return [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]


def test_every_policy_is_a_configuration_of_the_recipe(bench: ModuleType, tmp_path: Path) -> None:
    scene = load_scene(write_ring(tmp_path / "ring"))
    configs = [bench.config_for(name, scene, CPU) for name in bench.POLICIES]
    assert bench.arguments(["x"]).policies == list(bench.POLICIES)
    assert len({repr(config) for config in configs}) == len(configs) - 1, "`hard` draws pixels by edges anyway"
    assert bench.config_for("hard, Huber", scene, CPU).loss[0].kind == "huber"
    assert bench.config_for("hard", scene, CPU).loss[0].kind == "l2"


def test_guard_rows_carry_psnr_hits_false_alarms_and_the_commit(bench: ModuleType, tmp_path: Path) -> None:
    rows = rows_of(bench, tmp_path, "--guard", "--policies", "none", "hard, Huber", "--shares", "0", "0.25")
    found = [(row["policy"], row["wrong"], row["of"], row["steps"]) for row in rows]
    assert found == [(name, wrong, COUNT, 4) for wrong in (0, 3) for name in ("none", "hard, Huber")]
    for row in rows:
        assert isinstance(row["psnr"], float)
        assert (row["scene"], row["downscale"], row["pixels"]) == ("ring", 1, [8, 8])
        assert row["hits"] == row["false_alarms"] == 0, "four steps show nothing"
        assert row["commit"] == describe_environment(CPU).commit


def test_recovery_rows_compare_right_wrong_and_refined_poses(bench: ModuleType, tmp_path: Path) -> None:
    words = ("--perturb-degrees", "1", "--perturb-distance", "0.01", "--views", "1", "--fit-steps", "2")
    rows = rows_of(bench, tmp_path, *words)
    assert [row["poses"] for row in rows] == ["right", "wrong", "wrong, refined"]
    assert [(row.get("until"), row.get("ended")) for row in rows] == [(None, None), (None, None), (0.6, 3)]
    assert rows[0]["error_degrees"] == pytest.approx(0, abs=1e-4)
    # Alignment may take a part of the errors away.
    assert rows[1]["error_degrees"] == pytest.approx(1, abs=0.3)
    assert all(isinstance(row["fitted_psnr"], float) and (row["steps"], row["fit_steps"]) == (4, 2) for row in rows)
