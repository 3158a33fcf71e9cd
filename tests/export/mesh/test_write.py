"""Textured meshes in files, and their comparison with the field."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from raymine.export.mesh.check import check_mesh, compare
from raymine.export.mesh.extract import decimate, extract, sample_grid
from raymine.export.mesh.texture import with_texture, with_vertex_colours
from raymine.export.mesh.write import placed, read_mesh, write_mesh
from raymine.export.model import Placement, box_of
from support.export_models import TURNED, ball_model


@pytest.mark.parametrize("suffix", ["glb", "obj", "ply"])
def test_mesh_comes_back_in_the_users_world_with_its_colours(tmp_path: Path, suffix: str) -> None:
    model = ball_model(TURNED)
    grid = sample_grid(model, box_of(model.scene, None, "scene"), 48)
    bare = decimate(extract(grid, 4.0), 600)
    mesh = with_vertex_colours(bare, model) if suffix == "ply" else with_texture(bare, model, 128)
    placement = Placement.of(model.scene, "scene")
    path = tmp_path / f"ball.{suffix}"
    files = write_mesh(path, placed(mesh, placement))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(each.name for each in files)
    back = read_mesh(path)
    assert len(back.faces) == len(mesh.faces)
    # OBJ rounds to eight digits; GLB and PLY to float32.
    assert np.abs(np.sort(placement.back(back.vertices), 0) - np.sort(mesh.vertices, 0)).max() < 1e-5
    found = check_mesh(path, model, placement, grid.box, grid.cell)
    assert found.near > 0.99
    assert found.covered > 0.9  # the pictures of these cameras are small: edges of the ball count
    assert found.distance < 0.6
    psnr = compare(mesh, model, grid.box, grid.cell).psnr if suffix == "ply" else found.psnr
    assert psnr is not None
    assert psnr > 22


def test_glb_says_that_its_material_is_not_lit(tmp_path: Path) -> None:
    model = ball_model()
    bare = decimate(extract(sample_grid(model, box_of(model.scene, None, "scene"), 24), 4.0), 200)
    path = tmp_path / "a.glb"
    write_mesh(path, with_texture(bare, model, 64))
    data = path.read_bytes()
    magic, version, length, chunk = struct.unpack_from("<4sIII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data))
    document = json.loads(data[20 : 20 + chunk])
    assert document["extensionsUsed"] == ["KHR_materials_unlit"]
    assert "NORMAL" in document["meshes"][0]["primitives"][0]["attributes"]
