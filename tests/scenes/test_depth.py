"""Depth maps: files, units, distances along rays, and what `check` says about broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raymine import checkpoint
from raymine.contracts import Scene
from raymine.errors import RunError, SceneError
from raymine.experiment import train
from raymine.files import UnreadableFile
from raymine.rays import CameraRig
from raymine.recipes.techniques import Techniques
from raymine.scenes import load_scene
from raymine.scenes.check import check_scene
from raymine.scenes.depth import DepthMaps, depth_digest, depth_digests, read_depth
from raymine.step import TrainData, create_state
from raymine.step.batch import draw_batch
from support.depth_scene import write_depth_scene
from support.runs import StopAt, request
from support.step import CONFIG

FILES = [*(f"d{i}.png" for i in range(7)), "d7.npy", ""]


def scene_with_depth(tmp_path: Path, **keys: float) -> Scene:
    return load_scene(write_depth_scene(tmp_path / "scene", FILES, **keys), split="all")


def test_depths_are_scaled_with_the_scene(tmp_path: Path) -> None:
    scene = scene_with_depth(tmp_path)
    assert "Depth: 8 of 9 frames have a depth map, which `depth_loss` trains with." in scene.decisions
    maps = DepthMaps(scene, range(9))
    image = torch.tensor([0, 0, 7, 8])
    found = maps.gather(image, torch.tensor([5, 0, 5, 5]), torch.tensor([9, 1, 9, 9]))
    assert found.tolist() == pytest.approx([3 * scene.scale, 0.0, 3 * scene.scale, 0.0], rel=1e-5)


def test_unit_of_the_file(tmp_path: Path) -> None:
    scene = scene_with_depth(tmp_path, depth_unit_scale_factor=0.01)
    found = DepthMaps(scene, [0]).gather(torch.tensor([0]), torch.tensor([5]), torch.tensor([5]))
    assert float(found) == pytest.approx(30 * scene.scale, rel=1e-5)


def test_distances_of_a_batch_are_along_the_rays(tmp_path: Path) -> None:
    from raymine.losses import ColourLoss, DepthLoss
    from raymine.scenes.bank import open_bank

    scene = scene_with_depth(tmp_path)
    rig = CameraRig(scene, range(9))
    with open_bank(scene, range(9)) as bank:
        data = TrainData(rig, bank, scene.bounds, None, DepthMaps(scene, range(9)))
        config = CONFIG.__class__(**{**CONFIG.__dict__, "loss": (ColourLoss(), DepthLoss())})
        state = create_state(config, data, seed=0, device=torch.device("cpu"))
        state.rays = 200
        batch = draw_batch(state, data)
    depth = batch.targets.depth
    assert depth is not None
    assert batch.pixels is not None
    known = depth > 0
    assert not known[batch.pixels.image == 8].any()
    assert known[batch.pixels.image == 0].any()
    ends = batch.rays.origins + depth[:, None] * batch.rays.directions
    axis = torch.from_numpy(-scene.frames[0].pose[:, 2]).float()
    own = known & (batch.pixels.image == 0)
    along = ((ends - batch.rays.origins) @ axis)[own]
    assert along.tolist() == pytest.approx([3 * scene.scale] * len(along), rel=1e-4)
    assert depth[own].max() > 1.02 * depth[own].min(), "rays at the edge of the image are longer"


def test_digests_follow_content_unit_and_the_image_of_a_depth_map(tmp_path: Path) -> None:
    folder = write_depth_scene(tmp_path / "scene", FILES)
    scene = load_scene(folder, split="all")
    first = depth_digests(scene, range(9))
    assert list(first) == [f"{i}.png (depth map)" for i in range(8)]
    assert depth_digests(scene, [8]) == {}
    assert depth_digest({}) is None
    Image.fromarray(np.full((8, 8), 2000, np.uint16)).save(folder / "d3.png")
    second = depth_digests(scene, range(9))
    assert [name for name in first if first[name] != second[name]] == ["3.png (depth map)"]
    document = (folder / "transforms.json").read_text()
    (folder / "transforms.json").write_text(document.replace('"d1.png"', '"d3.png"'))
    third = depth_digests(load_scene(folder, split="all"), range(9))
    assert third["1.png (depth map)"] == second["3.png (depth map)"]
    (folder / "transforms.json").write_text(document.replace('"w": ', '"depth_unit_scale_factor": 0.01, "w": '))
    fourth = depth_digests(load_scene(folder, split="all"), range(9))
    assert all(fourth[name] != second[name] for name in second)
    (folder / "d3.png").unlink()
    assert depth_digests(scene, [3]) == {"3.png (depth map)": ""}
    assert len({depth_digest(each) for each in (first, second, third, fourth)}) == 4


def test_resume_refuses_changed_depth_maps_of_a_run_that_uses_them(tmp_path: Path) -> None:
    folder = write_depth_scene(tmp_path / "scene", FILES)
    changes = {"techniques": Techniques(depth_loss=1.0), "evaluate_views": 0}
    for name in ("with", "old"):
        train(request(folder, tmp_path / name, steps=4, **changes))
    train(request(folder, tmp_path / "without", steps=4, evaluate_views=0))
    kept = json.loads((tmp_path / "with/images.json").read_text())
    plain = json.loads((tmp_path / "without/images.json").read_text())
    # Two of the frames are for tests, and one has no depth map.
    assert set(kept) - set(plain) == {f"{i}.png (depth map)" for i in range(9) if f"{i}.png" in plain and i < 8}
    # A run of an earlier version did not record them.
    (tmp_path / "old/images.json").write_text(json.dumps(plain))
    Image.fromarray(np.full((8, 8), 2000, np.uint16)).save(folder / "d3.png")
    with pytest.raises(RunError, match=r"Depth maps of the scene have changed since .*: 3\.png \(depth map\)\."):
        train(request(folder, tmp_path / "with", steps=6, resume=True, **changes))
    train(request(folder, tmp_path / "old", steps=6, resume=True, **changes))
    train(request(folder, tmp_path / "without", steps=6, resume=True, evaluate_views=0))


def test_depth_loss_trains_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    folder = write_depth_scene(tmp_path / "scene", FILES)
    changes = {"techniques": Techniques(depth_loss=1.0), "evaluate_views": 0}
    train(request(folder, tmp_path / "whole", **changes))
    train(request(folder, tmp_path / "parts", **changes), observer=StopAt(16))
    train(request(folder, tmp_path / "parts", resume=True, **changes))
    train(request(folder, tmp_path / "without", evaluate_views=0))
    found = [checkpoint.load_latest(tmp_path / name / "checkpoints") for name in ("whole", "parts", "without")]
    whole, parts, without = (latest.checkpoint.tensors for latest in found if latest is not None)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not torch.equal(whole["field.table"], without["field.table"])


def test_check_reports_broken_depth_maps(tmp_path: Path) -> None:
    folder = write_depth_scene(tmp_path / "scene", FILES)
    (folder / "d0.png").unlink()
    (folder / "d1.png").write_bytes(b"no image")
    np.save(folder / "d7.npy", np.zeros((8, 8, 3), np.float32))
    Image.fromarray(np.full((4, 12), 7, np.uint16)).save(folder / "d2.png")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "d3.png")
    told = {p.file.split("(")[-1].rstrip(")"): p.what for p in check_scene(folder) if p.kind == "depth"}
    assert "names the depth map d0.png, which does not exist" in told["0.png"]
    assert told["1.png"] == "the depth map d1.png is not an image, or it is damaged at the start."
    assert told["2.png"] == "the depth map d2.png is 12x4, another shape than the image (16x16)."
    assert told["3.png"] == "the depth map d3.png has no positive depth anywhere."
    assert told["7.png"] == "the depth map d7.npy is no depth map of one channel: its shape is [8, 8, 3]."
    assert all(p.severity == "warning" for p in check_scene(folder))


def test_unreadable_depth_map_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_depth_scene(tmp_path / "scene", FILES)
    (folder / "d7.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UnreadableFile, match="cannot be read as a NumPy array"):
        read_depth(folder / "d7.npy")
    with pytest.raises(SceneError, match=r"The depth map .*d7\.npy cannot be read"):
        DepthMaps(load_scene(folder, split="all"), range(9))


def test_bad_unit_is_a_warning(tmp_path: Path) -> None:
    folder = write_depth_scene(tmp_path / "scene", FILES, depth_unit_scale_factor=-1.0)
    assert any("`depth_unit_scale_factor` = -1; 0.001 is used" in p.what for p in check_scene(folder))
