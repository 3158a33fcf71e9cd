"""Snapshots of hash-grid fields, read by the loader alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raymine.errors import ConfigError
from raymine.export import snapshot_loader
from raymine.export.snapshot import CLOSE, check_snapshot, precision_of, probes, write_snapshot
from support.export_models import ball_model, hash_model


@pytest.mark.parametrize("levels", [1, 3])
def test_snapshot_matches_the_model(tmp_path: Path, levels: int) -> None:
    model = hash_model(levels=levels)
    path = tmp_path / "a.safetensors"
    assert write_snapshot(path, model) == (path,)
    assert check_snapshot(path, model) < CLOSE
    field = snapshot_loader.load(str(path))
    points, directions = probes(model, 100)
    assert float(model.output(points, directions)[1].std()) > 0.01
    colour, density = field.activated(points, directions)
    assert torch.allclose(colour, model.colour(points, directions), atol=1e-3)
    assert torch.allclose(density, model.density(points), rtol=2e-3)


def test_occupancy_of_the_snapshot_is_that_of_the_model(tmp_path: Path) -> None:
    model = hash_model(levels=2)
    sampler = model.sampler
    sampler.swept = True  # type: ignore[attr-defined]
    sampler.values.copy_(torch.rand(sampler.values.shape))  # type: ignore[attr-defined]
    sampler.config.__dict__["threshold"] = 0.4  # type: ignore[attr-defined]
    write_snapshot(tmp_path / "a.safetensors", model)
    points = 3.5 * (torch.rand(2000, 3) * 2 - 1)
    found = snapshot_loader.load(str(tmp_path / "a.safetensors")).occupied(points)
    assert torch.equal(found, model.occupied(points))
    assert 0.1 < float(found.float().mean()) < 0.9


def test_table_that_integers_cannot_hold_is_stored_in_single_precision(tmp_path: Path) -> None:
    model = hash_model()
    path = tmp_path / "a.safetensors"
    write_snapshot(path, model)
    assert precision_of(path) == "as 16-bit integers"
    with torch.no_grad():
        model.field.table.mul_(3e3)  # type: ignore[union-attr, operator]
    write_snapshot(path, model)
    assert precision_of(path).startswith("in single precision")


def test_loader_needs_torch_and_safetensors_alone(tmp_path: Path) -> None:
    files = write_snapshot(tmp_path / "a.safetensors", hash_model(), loader=True)
    assert [each.name for each in files] == ["a.safetensors", "snapshot_loader.py"]
    code = (
        "import sys, torch, snapshot_loader\n"
        "field = snapshot_loader.load('a.safetensors')\n"
        "colour, density = field(torch.zeros(2, 3), torch.tensor([[0.0, 0, 1], [1, 0, 0]]))\n"
        "assert colour.shape == (2, 3) and density.shape == (2,)\n"
        "assert 'raymine' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PATH": "", "HOME": str(tmp_path)})


def test_other_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hash-grid field; this run has a DistanceField"):
        write_snapshot(tmp_path / "a.safetensors", ball_model())
    assert not list(tmp_path.iterdir())
