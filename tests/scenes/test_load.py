"""Scene readers: every format projects the same points to the same pixels, at every size and orientation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raymine.cameras import distort_fisheye, distort_opencv, project
from raymine.contracts import Scene
from raymine.errors import ConfigError, SceneError
from raymine.scenes import load_scene, scene_digest
from support.scene_writers import (
    Capture,
    frames_of,
    points_near,
    ring,
    transforms_of,
    write_blender,
    write_colmap,
    write_image,
    write_images,
    write_json,
    write_llff,
    write_transforms,
)

WRITERS = {
    "blender": write_blender,
    "transforms": write_transforms,
    "llff": write_llff,
    "colmap-binary": write_colmap,
    "colmap-text": lambda capture, root: write_colmap(capture, root, binary=False),
}


def largest_miss(scene: Scene, capture: Capture, expected: Any = None) -> float:
    """Largest distance in pixels between the scene's projection and the truth, at the size of the scene's images."""
    points = points_near()
    moved = points @ scene.normalisation[:3, :3].T + scene.normalisation[:3, 3]
    worst = 0.0
    for frame in scene.frames:
        digits = "".join(c for c in frame.image.stem if c.isdigit())
        truth = (expected or capture.pixels)(int(digits), points)
        camera = scene.cameras[frame.camera]
        xy, depth = project(camera, frame.pose, torch.from_numpy(moved))
        assert (depth > 0).all()
        scale = [camera.width / capture.width, camera.height / capture.height]
        worst = max(worst, float(np.abs(xy.numpy() - truth * scale).max()))
    return worst


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("downscale", [1, 2])
def test_every_format_projects_the_same_points_to_the_same_pixels(kind: str, downscale: int, tmp_path: Path):
    capture = ring()
    scene = load_scene(WRITERS[kind](capture, tmp_path), downscale=downscale)
    assert len(scene.frames) == len(capture)
    assert {(c.width, c.height) for c in scene.cameras} == {(48 // downscale, 32 // downscale)}
    assert largest_miss(scene, capture) < 1e-3
    assert scene.format == kind.split("-")[0]
    assert any(d.startswith("Format:") for d in scene.decisions)


@pytest.mark.parametrize("kind", ["transforms", "llff", "colmap-binary"])
def test_normalised_scenes_are_centred_upright_and_of_unit_size(kind: str, tmp_path: Path):
    scene = load_scene(WRITERS[kind](ring(), tmp_path))
    centre = scene.normalisation @ [2.0, -1.0, 5.0, 1.0]
    assert np.abs(centre[:3]).max() < 1e-6
    # The capture's world has y down, so its -y must come out as +z.
    up = scene.normalisation[:3, :3] @ [0.0, -1.0, 0.0]
    assert up / np.linalg.norm(up) == pytest.approx([0, 0, 1], abs=0.05)
    positions = np.stack([f.pose[:, 3] for f in scene.frames])
    assert np.median(np.linalg.norm(positions, axis=1)) == pytest.approx(1.0, rel=1e-3)
    assert np.abs(positions).max() <= 2.0 ** (scene.bounds.levels - 1)


def test_blender_scene_keeps_its_coordinates_and_split(tmp_path: Path):
    capture = ring()
    scene = load_scene(write_blender(capture, tmp_path))
    np.testing.assert_array_equal(scene.normalisation, np.eye(4))
    assert (len(scene.of_split("train")), len(scene.of_split("test"))) == (6, 3)
    assert scene.bounds.low == (-1.5,) * 3
    assert scene.bounds.levels == 1
    assert scene.background == (1.0, 1.0, 1.0)
    assert scene.warnings == ()


def test_d_nerf_frame_times_are_read(tmp_path: Path):
    capture = ring()
    write_blender(capture, tmp_path)
    for split in ("train", "test"):
        path = tmp_path / f"transforms_{split}.json"
        document = json.loads(path.read_text())
        for i, frame in enumerate(document["frames"]):
            frame["time"] = i / 10
        write_json(path, document)
    scene = load_scene(tmp_path)
    assert scene.dynamic
    assert [scene.frames[i].time for i in scene.of_split("test")] == [0.0, 0.1, 0.2]


def test_opaque_alpha_channel_sets_no_background(tmp_path: Path):
    capture = ring()
    write_transforms(capture, tmp_path)
    from PIL import Image

    for name in capture.names:
        Image.open(tmp_path / "images" / name).convert("RGBA").save(tmp_path / "images" / name)
    assert load_scene(tmp_path).background is None


def test_opencv_and_fisheye_lenses_of_a_transforms_file_project_correctly(tmp_path: Path):
    capture = ring()
    k1, k2, p1, p2 = -0.2, 0.05, 0.002, -0.001

    def flat(i: int, points: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        xy = (capture.pixels(i, points) - [24, 16]) / 40.0
        return torch.from_numpy(xy[:, 0]), torch.from_numpy(xy[:, 1])

    def opencv(i: int, points: np.ndarray) -> np.ndarray:
        u, v = distort_opencv(*flat(i, points), [torch.tensor(c).double() for c in (k1, k2, p1, p2, 0.0)])
        return torch.stack([u, v], 1).numpy() * 40 + [24, 16]

    root = write_transforms(capture, tmp_path / "a", camera_model="OPENCV", k1=k1, k2=k2, p1=p1, p2=p2)
    scene = load_scene(root)
    assert scene.cameras[0].model == "opencv"
    assert largest_miss(scene, capture, opencv) < 1e-3

    def fisheye(i: int, points: np.ndarray) -> np.ndarray:
        u, v = flat(i, points)
        r = torch.sqrt(u * u + v * v)
        d = distort_fisheye(torch.atan(r), [torch.tensor(c).double() for c in (0.03, -0.01, 0.0, 0.0)]) / r
        return torch.stack([u * d, v * d], 1).numpy() * 40 + [24, 16]

    for key in ({"is_fisheye": True}, {"camera_model": "OPENCV_FISHEYE"}):
        root = write_transforms(capture, tmp_path / next(iter(key)), k1=0.03, k2=-0.01, **key)
        scene = load_scene(root)
        assert scene.cameras[0].model == "fisheye"
        assert largest_miss(scene, capture, fisheye) < 1e-3


@pytest.mark.parametrize("place", ["sparse", "colmap/sparse/0"])
def test_colmap_model_is_found_in_other_folders_or_given_directly(place: str, tmp_path: Path):
    capture = ring()
    write_colmap(capture, tmp_path / "scene")
    target = tmp_path / "other" / place
    target.parent.mkdir(parents=True)
    (tmp_path / "scene/sparse/0").rename(target)
    (tmp_path / "scene/images").rename(tmp_path / "other/images")
    assert largest_miss(load_scene(tmp_path / "other"), capture) < 1e-3
    assert largest_miss(load_scene(target), capture) < 1e-3


def test_downscale_uses_folders_of_smaller_images(tmp_path: Path):
    capture = ring()
    write_colmap(capture, tmp_path)
    write_images(capture, tmp_path / "images_2", (24, 16))
    scene = load_scene(tmp_path, downscale=2)
    assert {f.image.parent.name for f in scene.frames} == {"images_2"}
    assert (scene.cameras[0].width, scene.cameras[0].fx, scene.divided) == (24, 20.0, 1)
    assert "Images: images_2, already smaller by 2." in scene.decisions
    assert not any("after dividing" in sentence for sentence in scene.decisions)
    full = load_scene(tmp_path, downscale=4)
    assert {f.image.parent.name for f in full.frames} == {"images"}
    assert (full.cameras[0].width, full.cameras[0].height, full.divided) == (12, 8, 4)


def test_incomplete_folder_of_smaller_images_is_not_used_and_said(tmp_path: Path):
    capture = ring()
    write_colmap(capture, tmp_path)
    write_images(capture, tmp_path / "images_2", (24, 16))
    (tmp_path / "images_2" / capture.names[3]).unlink()
    scene = load_scene(tmp_path, downscale=2)
    assert {f.image.parent.name for f in scene.frames} == {"images"}
    assert (scene.cameras[0].width, scene.divided) == (24, 2)
    (warning,) = scene.warnings
    assert warning.startswith("images_2: has 8 of 9 images, so those of images are divided by 2 instead.")


def test_llff_with_only_small_images_scales_x_and_y_separately(tmp_path: Path):
    capture = ring()
    write_llff(capture, tmp_path, full=8)
    (tmp_path / "images").rename(tmp_path / "images_8")
    for i, name in enumerate(capture.names):
        write_image(tmp_path / "images_8" / name, (48, 31), i)
    for downscale in (1, 8):
        scene = load_scene(tmp_path, downscale=downscale)
        camera = scene.cameras[0]
        assert (camera.width, camera.height) == (48, 31)
        assert camera.fx == pytest.approx(40.0)
        assert camera.fy == pytest.approx(40.0 * 31 / 32)
        assert any("384x256" in d and "48x31" in d for d in scene.decisions)
    assert load_scene(tmp_path, downscale=2).cameras[0].width == 24


def test_incomplete_colmap_falls_back_to_poses_bounds(tmp_path: Path):
    capture = ring()
    write_llff(capture, tmp_path)
    (tmp_path / "sparse/0").mkdir(parents=True)
    (tmp_path / "sparse/0/cameras.bin").write_bytes(b"x")
    scene = load_scene(tmp_path)
    assert scene.format == "llff"
    assert any("incomplete" in d and "images.bin" in d for d in scene.decisions)
    (tmp_path / "poses_bounds.npy").unlink()
    with pytest.raises(SceneError, match=r"incomplete: sparse/0/cameras.bin has no images.bin"):
        load_scene(tmp_path)


def test_missing_images_are_skipped_with_a_warning(tmp_path: Path):
    capture = ring(20)
    write_transforms(capture, tmp_path)
    for i in (1, 5, 6):
        (tmp_path / "images" / capture.names[i]).unlink()
    scene = load_scene(tmp_path)
    assert len(scene.frames) == 17
    assert "3 of 20 frames have no image; training on the other 17." in scene.warnings[0]
    assert "photo_05.png" in scene.warnings[0]
    # Every 8th of the remaining frames, starting with the first: 0, 11 and 19, since 1, 5 and 6 are missing.
    held = [scene.frames[i].image.stem for i in scene.of_split("test")]
    assert held == ["photo_00", "photo_11", "photo_19"]
    assert largest_miss(scene, capture) < 1e-3


def test_scene_without_any_image_raises(tmp_path: Path):
    write_json(tmp_path / "transforms.json", transforms_of(ring()))
    with pytest.raises(
        SceneError, match=r"none of the 9 frames has an image; the first is images/photo_00.png"
    ) as error:
        load_scene(tmp_path)
    assert "raymine check" in error.value.hint


def test_image_names_match_despite_case_extension_or_slashes(tmp_path: Path):
    capture = ring(4)
    write_json(tmp_path / "transforms.json", transforms_of(capture))
    document = transforms_of(capture)
    files = ["A.JPG", "b.jpeg", "c.webp", "d.v2.png"]
    names = ["images/a", "./images/b.png", "images\\c.webp", "/home/someone/else/images/d.v2"]
    for i, (file, name) in enumerate(zip(files, names, strict=True)):
        write_image(tmp_path / "images" / file, (48, 32), i)
        document["frames"][i]["file_path"] = name
    write_json(tmp_path / "transforms.json", document)
    scene = load_scene(tmp_path)
    assert [f.image.name for f in scene.frames] == files
    assert scene.warnings == ()


def test_nerfstudio_file_lists_define_the_split(tmp_path: Path):
    capture = ring()
    names = [f"images/{n}" for n in capture.names]
    write_transforms(capture, tmp_path, train_filenames=names[:5], val_filenames=names[5:6], test_filenames=names[6:8])
    scene = load_scene(tmp_path)
    assert [len(scene.of_split(s)) for s in ("train", "val", "test")] == [5, 1, 2]
    assert any("1 frames are in no list" in w and "photo_08" in w for w in scene.warnings)


def test_split_options_choose_test_frames_and_reject_bad_values(tmp_path: Path):
    write_transforms(ring(10), tmp_path)
    assert len(load_scene(tmp_path).of_split("test")) == 2
    assert len(load_scene(tmp_path, split="every:4").of_split("test")) == 3
    assert len(load_scene(tmp_path, split="all").of_split("train")) == 10
    for wrong in ("every:1", "every:x", "some"):
        with pytest.raises(ConfigError, match="every:N"):
            load_scene(tmp_path, split=wrong)
    with pytest.raises(ConfigError, match="downscale"):
        load_scene(tmp_path, downscale=0)


def test_per_frame_intrinsics_of_a_given_transforms_file_are_read(tmp_path: Path):
    capture = ring()
    document = transforms_of(capture)
    own = document["frames"][2]
    own.update(fl_x=80.0, fl_y=80.0, w=96, h=64, cx=48.0, cy=32.0)
    write_images(capture, tmp_path / "images")
    write_image(tmp_path / own["file_path"], (96, 64), 2)
    write_json(tmp_path / "mine.json", document)
    scene = load_scene(tmp_path / "mine.json")
    assert len(scene.cameras) == 2
    assert scene.cameras[scene.frames[2].camera].width == 96
    assert largest_miss(scene, capture) < 1e-3


def test_aabb_scale_sets_levels_and_masks_are_found(tmp_path: Path):
    capture = ring()
    document = {**transforms_of(capture), "aabb_scale": 16}
    write_images(capture, tmp_path / "images")
    write_image(tmp_path / "masks/m.png", (48, 32))
    document["frames"][1]["mask_path"] = "masks/m.png"
    document["frames"][2]["mask_path"] = "masks/gone.png"
    write_json(tmp_path / "transforms.json", document)
    scene = load_scene(tmp_path)
    assert scene.bounds.levels == 5
    assert scene.frames[1].mask == tmp_path / "masks/m.png"
    assert scene.frames[2].mask is None
    assert any("gone.png" in w for w in scene.warnings)


def test_resized_images_scale_the_intrinsics(tmp_path: Path):
    capture = ring()
    write_transforms(capture, tmp_path)
    write_images(capture, tmp_path / "images", (24, 16))
    scene = load_scene(tmp_path)
    assert (scene.cameras[0].width, scene.cameras[0].fx, scene.cameras[0].cx) == (24, 20.0, 12.0)
    assert any("48x32" in d and "24x16" in d for d in scene.decisions)
    assert largest_miss(scene, capture) < 1e-3


def test_mixed_image_sizes_raise(tmp_path: Path):
    capture = ring()
    write_transforms(capture, tmp_path)
    write_image(tmp_path / "images" / capture.names[4], (40, 32), 4)
    with pytest.raises(SceneError, match=r"1 of 9 images .* differ in size .*48x32.*photo_04.png \(40x32\)"):
        load_scene(tmp_path)


@pytest.mark.parametrize(("orientation", "turns"), [(6, 1), (8, 3)])
def test_camera_for_stored_pixels_is_turned_by_exif_orientation(orientation: int, turns: int, tmp_path: Path):
    """The file states 48x32 and stores that, but is shown as 32x48: the camera must turn with the picture."""
    capture = ring()
    write_transforms(capture, tmp_path)
    for i, name in enumerate(capture.names):
        write_image(tmp_path / "images" / name.replace("png", "jpg"), (48, 32), i, orientation=orientation)
        (tmp_path / "images" / name).unlink()
    scene = load_scene(tmp_path)
    assert (scene.cameras[0].width, scene.cameras[0].height) == (32, 48)

    def turned(i: int, points: np.ndarray) -> np.ndarray:
        xy = capture.pixels(i, points)
        return np.stack([32 - xy[:, 1], xy[:, 0]] if turns == 1 else [xy[:, 1], 48 - xy[:, 0]], axis=1)

    shown = Capture(capture.rotations, capture.translations, 32, 48, capture.focal, capture.names)
    assert largest_miss(scene, shown, turned) < 1e-3


def test_camera_for_displayed_pixels_is_not_turned_by_exif_orientation(tmp_path: Path):
    capture = ring()
    write_transforms(capture, tmp_path)
    for i, name in enumerate(capture.names):
        (tmp_path / "images" / name).unlink()
        write_image(tmp_path / "images" / name.replace("png", "jpg"), (32, 48), i, orientation=6)
    scene = load_scene(tmp_path)
    assert (scene.cameras[0].width, scene.cameras[0].height) == (48, 32)
    assert largest_miss(scene, capture) < 1e-3
    assert scene.warnings == ()


def test_digest_changes_with_the_scene_and_not_with_its_location(tmp_path: Path):
    capture = ring()
    scene = load_scene(write_transforms(capture, tmp_path / "a"))
    digest = scene_digest(scene)
    assert len(digest) == 64
    assert digest == scene_digest(load_scene(write_transforms(capture, tmp_path / "b")))
    assert digest != scene_digest(load_scene(tmp_path / "a", downscale=2))
    assert digest != scene_digest(load_scene(tmp_path / "a", split="all"))
    assert digest != scene_digest(load_scene(write_transforms(capture, tmp_path / "c", fl_x=41.0)))
    document = transforms_of(capture)
    document["frames"][3]["transform_matrix"][0][3] += 0.001
    write_json(tmp_path / "b/transforms.json", document)
    assert digest != scene_digest(load_scene(tmp_path / "b"))


def test_val_split_is_used_as_test_if_there_is_none(tmp_path: Path):
    capture = ring()
    names = [f"images/{n}" for n in capture.names]
    write_transforms(capture, tmp_path, train_filenames=names[:6], val_filenames=names[6:])
    scene = load_scene(tmp_path)
    assert len(scene.of_split("test")) == 3
    assert any("val as test" in d for d in scene.decisions)


def test_test_images_are_chosen_by_name_and_not_by_file_order(tmp_path: Path):
    capture = ring(10)
    frames = frames_of(capture)
    write_transforms(capture, tmp_path, frames=frames[5:] + frames[:5])
    scene = load_scene(tmp_path)
    assert sorted(scene.frames[i].image.stem for i in scene.of_split("test")) == ["photo_00", "photo_08"]


def test_llff_depths_bound_the_near_plane_unless_they_are_placeholders(tmp_path: Path):
    capture = ring()
    unit = np.median([np.linalg.norm(capture.camera_to_world(i)[:3, 3] - [2.0, -1.0, 5.0]) for i in range(9)])
    scene = load_scene(write_llff(capture, tmp_path / "near", bounds=(0.2, 6.0)))
    assert scene.bounds.near == pytest.approx(0.8 * 0.2 / unit, rel=1e-3)
    assert "content reaches" in scene.decisions[-1]
    root = write_llff(capture, tmp_path / "placeholder")
    rows = np.load(root / "poses_bounds.npy")
    rows[:, 15:] = 0.1, 500.0
    np.save(root / "poses_bounds.npy", rows)
    scene = load_scene(root)
    assert scene.bounds.near == pytest.approx(0.1)
    assert scene.bounds.levels == 5
    assert any("placeholder" in d for d in scene.decisions)


def test_downscale_that_leaves_no_pixel_is_refused(tmp_path: Path) -> None:
    folder = WRITERS["blender"](ring(), tmp_path)
    with pytest.raises(ConfigError, match=r"49.* leaves nothing of images of 48x32 pixels"):
        load_scene(folder, downscale=49)
