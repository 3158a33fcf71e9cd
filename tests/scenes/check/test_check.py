"""`check_scene` must report every defect in one pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.errors import ConfigError
from raymine.scenes import Problem, check_scene, load_scene
from support.scene_writers import (
    frames_of,
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


def kinds(problems: list[Problem]) -> set[str]:
    return {p.kind for p in problems}


def only(problems: list[Problem], kind: str) -> Problem:
    found = [p for p in problems if p.kind == kind]
    assert len(found) == 1, [str(p) for p in problems]
    return found[0]


@pytest.mark.parametrize("write", [write_transforms, write_llff, write_colmap], ids=["transforms", "llff", "colmap"])
def test_valid_scene_has_no_problems(write, tmp_path: Path):
    assert check_scene(write(ring(), tmp_path)) == []


def test_valid_blender_scene_has_no_problems(tmp_path: Path):
    assert check_scene(write_blender(ring(centre=(0.0, 0.0, 0.0)), tmp_path)) == []


def test_every_kind_of_defect_is_reported_in_one_pass(tmp_path: Path):
    capture = ring(24)
    document = transforms_of(capture)
    frames = document["frames"]
    write_images(capture, tmp_path / "images")
    image = [tmp_path / "images" / name for name in capture.names]

    image[1].unlink()
    image[2].unlink()
    image[3].write_bytes(image[3].read_bytes()[:600])
    image[4].write_bytes(b"this is not an image")
    image[5].write_bytes(b"")
    write_image(image[6], (40, 32), 6)
    frames[7]["transform_matrix"][0][0] = float("nan")
    frames[8]["transform_matrix"] = (np.array(frames[8]["transform_matrix"]) * [[2], [2], [2], [1]]).tolist()
    frames[9]["transform_matrix"] = (np.array(frames[9]["transform_matrix"]) @ np.diag([-1, 1, 1, 1])).tolist()
    frames[10]["fl_x"] = 0.0
    frames[11]["fl_x"] = frames[11]["fl_y"] = 1e6
    frames[12]["cx"] = -500.0
    frames[13]["camera_model"] = "EQUIRECTANGULAR"
    frames[14]["file_path"] = frames[15]["file_path"]
    image[16].write_bytes(image[17].read_bytes())
    frames[18]["transform_matrix"] = frames[19]["transform_matrix"]
    write_image(tmp_path / "masks/small.png", (10, 10))
    frames[20]["mask_path"] = "masks/small.png"
    frames[21]["mask_path"] = "masks/none.png"
    frames[22]["time"] = 1.5
    del frames[23]["transform_matrix"]
    write_json(tmp_path / "transforms.json", document)

    calls: list[tuple[int, int]] = []
    problems = check_scene(tmp_path, progress=lambda done, total: calls.append((done, total)))
    text = "\n".join(map(str, problems))

    assert only(problems, "missing-image").files == ("images/photo_01.png", "images/photo_02.png")
    assert "photo_03.png: is cut short" in text
    assert "photo_04.png: is not an image" in text
    assert "photo_05.png: is empty (0 bytes)" in text
    assert "photo_06.png (40x32)" in only(problems, "mixed-size").what
    assert "(images/photo_07.png): the pose contains NaN" in text
    assert "(images/photo_08.png): the pose is not rigid: its rotation is scaled by 2" in text
    assert "(images/photo_09.png): the pose is not rigid: its rotation has determinant -1" in text
    assert "(images/photo_10.png): the focal length (0, 40) is not positive" in text
    assert "(images/photo_11.png): the angle of view" in text
    assert "(images/photo_12.png): the principal point (-500, 16) is far outside the image" in text
    assert "unknown camera model 'EQUIRECTANGULAR'" in only(problems, "camera-model").what
    assert "frames[15]" in only(problems, "duplicate-frame").what
    assert only(problems, "duplicate-image").files == ("images/photo_16.png", "images/photo_17.png")
    assert only(problems, "duplicate-pose").files == ("images/photo_18.png", "images/photo_19.png")
    assert "small.png is 10x10 pixels, which does not have the shape of its camera (48x32)" in text
    assert "names the mask masks/none.png, which does not exist" in text
    assert "outside 0..1: images/photo_22.png" in text
    assert "frames[23] (images/photo_23.png): has no `transform_matrix`" in text
    for problem in problems:
        assert problem.fix
        assert problem.what.endswith(".")
    severities = [p.severity for p in problems]
    assert severities == sorted(severities)
    assert calls[-1][0] == calls[-1][1] == len(calls)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_truncated_images_are_reported(share: float, suffix: str, tmp_path: Path):
    capture = ring()
    capture.names = [n.replace(".png", suffix) for n in capture.names]
    write_transforms(capture, tmp_path)
    path = tmp_path / "images" / capture.names[4]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    problem = only(check_scene(tmp_path), "unreadable-image")
    assert problem.file == f"images/photo_04{suffix}"
    assert problem.severity == "error"


@pytest.mark.parametrize(("pixel", "words"), [((9, 9, 9, 0), "transparent"), ((200, 0, 0, 255), "one colour")])
def test_blank_images_are_reported(pixel: tuple[int, ...], words: str, tmp_path: Path):
    capture = ring(6)
    scene = write_transforms(capture, tmp_path)
    folder = tmp_path / "images"
    with Image.open(folder / capture.names[0]) as image:
        size = image.size
    Image.new("RGBA", size, pixel).save(folder / capture.names[2])
    found = only(check_scene(scene), "blank-image")
    assert (found.file, found.severity) == (f"images/{capture.names[2]}", "warning")
    assert words in found.what
    for name in capture.names:
        Image.new("RGBA", size, pixel).save(folder / name)
    found = only(check_scene(scene), "blank-image")
    assert found.severity == "warning"
    assert "no other image shows anything" in found.what
    assert len(found.files) == 6
    # Training warns of it too, in the same words.
    assert any("no other image shows anything" in warning for warning in load_scene(scene).warnings)


def test_paths_without_a_scene_are_reported(tmp_path: Path):
    assert kinds(check_scene(tmp_path / "nowhere")) == {"no-such-path"}
    assert kinds(check_scene(tmp_path)) == {"empty"}
    (tmp_path / "readme.md").write_text("x")
    assert kinds(check_scene(tmp_path)) == {"unknown-format"}
    with pytest.raises(ConfigError, match="downscale"):
        check_scene(tmp_path, downscale=-1)


def test_broken_split_does_not_hide_problems_of_the_other(tmp_path: Path):
    write_blender(ring(centre=(0.0, 0.0, 0.0)), tmp_path)
    (tmp_path / "transforms_test.json").write_text('{"camera_angle_x": 0.7, "frames": [')
    train = json.loads((tmp_path / "transforms_train.json").read_text())
    train["frames"][0]["transform_matrix"][2][3] = float("inf")
    write_json(tmp_path / "transforms_train.json", train)
    problems = check_scene(tmp_path)
    assert "line 1, column" in only(problems, "json").what
    assert "infinite" in only(problems, "pose").what


def test_cameras_inside_the_box_or_looking_past_it_are_warnings(tmp_path: Path):
    capture = ring(6, centre=(0.0, 0.0, 0.0))
    write_blender(capture, tmp_path)
    path = tmp_path / "transforms_train.json"
    document = json.loads(path.read_text())
    inside = np.array(document["frames"][0]["transform_matrix"])
    inside[:3, 3] *= 0.2
    away = np.array(document["frames"][1]["transform_matrix"]) @ np.diag([-1.0, 1.0, -1.0, 1.0])
    document["frames"][0]["transform_matrix"] = inside.tolist()
    document["frames"][1]["transform_matrix"] = away.tolist()
    write_json(path, document)
    problems = check_scene(tmp_path)
    assert only(problems, "near-plane").files == ("./train/r_1",)
    assert only(problems, "view-misses-scene").files == ("./train/r_2",)
    assert {p.severity for p in problems} == {"warning"}


def test_outlier_camera_is_reported(tmp_path: Path):
    capture = ring(12)
    frames = frames_of(capture)
    frames[3]["transform_matrix"][0][3] += 3000.0
    write_transforms(capture, tmp_path, frames=frames)
    assert only(check_scene(tmp_path), "outlier").files == ("images/photo_03.png",)


def test_wrong_image_sizes_and_non_invertible_lenses_are_reported(tmp_path: Path):
    capture = ring()
    write_transforms(capture, tmp_path, k1=-3.0)
    write_images(capture, tmp_path / "images", (48, 20))
    problems = check_scene(tmp_path)
    assert "9 images are 48x20 but their camera is for 48x32" in only(problems, "wrong-size").what
    assert "cannot be undone" in only(problems, "lens").what
    assert len(only(problems, "lens").files) == 9


@pytest.mark.parametrize("count", [1, 9])
def test_capture_from_one_place_is_reported(tmp_path: Path, count: int):
    capture = ring(9)
    place = np.array([1.0, 2.0, 3.0])
    capture.translations[:] = [-rotation @ place for rotation in capture.rotations]
    frames = frames_of(capture)[:count]
    write_transforms(capture, tmp_path, frames=frames)
    what = only(check_scene(tmp_path), "parallax").what
    assert what.startswith("there is one training image" if count == 1 else "all training cameras are in one place")


@pytest.mark.parametrize("count", [1, 5])
def test_test_views_from_elsewhere_do_not_hide_training_views_from_one_place(tmp_path: Path, count: int):
    capture = ring(8)
    place = np.array([1.0, 2.0, 3.0])
    capture.translations[:] = [-rotation @ place for rotation in capture.rotations]
    write_blender(capture, tmp_path)
    held = json.loads((tmp_path / "transforms_test.json").read_text())
    for index, frame in enumerate(held["frames"]):
        frame["transform_matrix"][0][3] += 1.0 + index
    (tmp_path / "transforms_test.json").write_text(json.dumps(held))
    trained = json.loads((tmp_path / "transforms_train.json").read_text())
    trained["frames"] = trained["frames"][:count]
    (tmp_path / "transforms_train.json").write_text(json.dumps(trained))
    what = only(check_scene(tmp_path), "parallax").what
    assert what.startswith("there is one training image" if count == 1 else "all training cameras are in one place")


def test_same_pose_at_different_times_is_no_duplicate(tmp_path: Path):
    capture = ring(8, centre=(0.0, 0.0, 0.0))
    capture.rotations[:] = capture.rotations[0]
    capture.translations[:] = capture.translations[0]
    write_blender(capture, tmp_path)
    for split in ("train", "test"):
        path = tmp_path / f"transforms_{split}.json"
        document = json.loads(path.read_text())
        for frame in document["frames"]:
            frame["time"] = int(frame["file_path"].split("_")[1]) / 7
        write_json(path, document)
    assert check_scene(tmp_path) == []
