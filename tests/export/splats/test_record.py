"""Splats in files and in other worlds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.cameras import from_normalised, look_at
from raymine.contracts import Camera
from raymine.errors import ConfigError
from raymine.export.model import Placement
from raymine.export.ply import read_ply, write_ply
from raymine.export.splats.rasterise import rasterise
from raymine.export.splats.record import Splats, quaternion_of, read_splats, rotation_of, write_splats
from support.export_models import TURNED, cameras


def some(count: int, degree: int) -> Splats:
    drawn = torch.Generator().manual_seed(degree)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn)

    return Splats(
        0.4 * noise(count, 3), -2 + noise(count, 3), noise(count, 4), noise(count), noise(count, (degree + 1) ** 2, 3)
    )


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_file_has_the_layout_that_viewers_read(tmp_path: Path, degree: int) -> None:
    splats = some(5, degree)
    write_splats(tmp_path / "a.ply", splats)
    rows = read_ply(tmp_path / "a.ply")
    rest = 3 * ((degree + 1) ** 2 - 1)
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *(f"f_rest_{i}" for i in range(rest))]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    assert list(rows.dtype.names or ()) == names
    if degree:
        # All higher terms of red come first, then those of green.
        assert rows["f_rest_0"][2] == splats.harmonics[2, 1, 0]
        assert rows[f"f_rest_{rest // 3}"][2] == splats.harmonics[2, 1, 1]
    back = read_splats(tmp_path / "a.ply")
    for ours, theirs in zip(replace(splats, quaternions=back.quaternions).tensors(), back.tensors(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.allclose(rotation_of(back.quaternions), rotation_of(splats.quaternions), atol=1e-6)


def test_other_ply_files_are_refused(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", np.zeros(3, [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]))
    with pytest.raises(ConfigError, match="holds no Gaussian splats: it has no f_dc_0"):
        read_splats(tmp_path / "a.ply")


def test_quaternions_of_half_turns_come_back() -> None:
    turns = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0], [0.5, -0.5, 0.5, 0.5]])
    assert torch.allclose(rotation_of(quaternion_of(rotation_of(turns))), rotation_of(turns), atol=1e-6)


def test_placed_splats_look_the_same_from_the_placed_camera() -> None:
    """Position, size, shape and the colour in each direction move together."""
    scene, splats = cameras(TURNED), some(40, 3)
    camera, pose = Camera(24, 24, 30.0, 30.0, 12.0, 12.0), look_at(np.array([3.0, 1.0, 2.0]), np.zeros(3))
    here = rasterise(splats, camera, pose)
    there = rasterise(splats.placed(Placement.of(scene, "scene")), camera, from_normalised(scene, pose))
    assert float(here.opacity.max()) > 0.5
    assert float((here.colour - there.colour).abs().max()) < 2e-3
    assert float((here.opacity - there.opacity).abs().max()) < 2e-3
