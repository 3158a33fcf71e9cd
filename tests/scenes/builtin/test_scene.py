"""The built-in scene: folder format, views, geometry, shading, caching, and recovery from damage."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.errors import ConfigError, ResourceError
from raymine.scenes import load_scene
from raymine.scenes.bank import open_bank
from raymine.scenes.builtin import BuiltinConfig, builtin_scene, views
from raymine.scenes.builtin import scene as builtin
from raymine.scenes.builtin.source import generator_digest
from raymine.scenes.builtin.tracer import Tracer
from raymine.scenes.builtin.views import FIELD_OF_VIEW, look_at_centre

SMALL = {"size": 24, "train_views": 5, "test_views": 2}


@pytest.fixture(scope="module")
def tracer() -> Tracer:
    return Tracer()


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def focal(size: int) -> float:
    return 0.5 * size / math.tan(0.5 * FIELD_OF_VIEW)


def test_folder_is_a_blender_scene(tmp_path: Path) -> None:
    folder = builtin_scene(tmp_path, **SMALL)
    for split, count in (("train", 5), ("test", 2)):
        described = json.loads((folder / f"transforms_{split}.json").read_text())
        assert described["camera_angle_x"] == FIELD_OF_VIEW
        assert len(described["frames"]) == count
        for frame in described["frames"]:
            with Image.open(folder / (frame["file_path"] + ".png")) as picture:
                assert (picture.mode, picture.size) == ("RGBA", (24, 24))
                alpha = np.asarray(picture)[..., 3]
            assert alpha.min() == 0
            assert alpha.max() == 255
            assert np.shape(frame["transform_matrix"]) == (4, 4)


def test_builtin_scene_loads_and_packs(tmp_path: Path) -> None:
    folder = builtin_scene(tmp_path, **SMALL)
    scene = load_scene(folder)
    assert (len(scene.of_split("train")), len(scene.of_split("test"))) == (5, 2)
    with open_bank(scene, scene.of_split("train"), cache_dir=tmp_path) as bank:
        with Image.open(folder / "train" / "view_004.png") as picture:
            np.testing.assert_array_equal(bank.image(4), np.asarray(picture))
        assert bank.sizes.tolist() == [[24, 24]] * 5


def test_views_are_rigid_on_the_sphere_and_look_at_the_centre() -> None:
    train, test = views.train_poses(60), views.test_poses(10)
    for pose in (*train, *test):
        np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-12)
        assert np.linalg.det(pose[:3, :3]) == pytest.approx(1.0)
        # z points backward, from the centre to the camera; y never points down.
        np.testing.assert_allclose(pose[:3, 3], 4.0 * pose[:3, 2], atol=1e-12)
        assert pose[2, 1] > 0
        assert pose[2, 0] == pytest.approx(0.0, abs=1e-12)
    assert 4 <= (train[:, 2, 3] < 0).sum() <= 12
    apart = np.linalg.norm(train[:, None, :3, 3] - test[None, :, :3, 3], axis=-1).min(axis=0)
    assert apart.min() > 0.1
    assert apart.max() < 1.2


def test_ball_is_rendered_at_its_predicted_position_and_size(tracer: Tracer) -> None:
    """Seen straight from above through a narrow lens, the glazed ball is a disc of the predicted size and place."""
    size = 64
    pose = look_at_centre(-math.pi / 2, math.pi / 2 - 1e-9)
    pose[:3, 3] = (-0.5, -0.36, 4.0)
    centre_z, radius = -0.64 + 0.27, 0.27
    # The ball's edge is where a line from the eye touches it.
    distance = 4.0 - centre_z
    edge = radius / math.sqrt(distance**2 - radius**2)
    narrow = 20.0 / edge  # the disc has a radius of 20 pixels
    picture = tracer.render(pose, narrow, size).astype(float)
    yy, xx = np.mgrid[:size, :size] + 0.5
    off = np.hypot(xx - 32, yy - 32)
    inside, around = picture[off < 18.5], picture[(off > 21.5) & (off < 27)]
    assert (inside[:, 3] == 255).all()
    assert (inside[:, 2] > inside[:, 0]).mean() > 0.95  # blue
    assert (around[:, 2] > around[:, 0]).mean() < 0.7  # plate


def test_scene_content_lies_inside_the_box(tracer: Tracer) -> None:
    """Silhouettes from three sides stay within +-1.1, and nothing is cut off by the picture's border."""
    size = 48
    for azimuth, elevation in ((0.0, 0.0), (math.pi / 2, 0.0), (0.3, 1.5)):
        alpha = tracer.render(look_at_centre(azimuth, elevation), focal(size), size)[..., 3]
        rows, columns = np.nonzero(alpha)
        # The nearest content is at most 1.1 in front of the centre, 2.9 from the eye.
        reach = max(abs(rows + 0.5 - 24).max(), abs(columns + 0.5 - 24).max()) / focal(size) * 2.9
        assert reach < 1.1 + 0.05
        assert alpha[0].max() == alpha[-1].max() == alpha[:, 0].max() == alpha[:, -1].max() == 0


def test_only_glossy_surfaces_change_with_the_view_direction(tracer: Tracer) -> None:
    """One surface point in the middle of a narrow picture, seen from several directions."""

    def seen(point: tuple[float, float, float], azimuth: float) -> np.ndarray:
        pose = look_at_centre(azimuth, math.radians(50.0))
        pose[:3, 3] += point
        return tracer.render(pose, 4000.0, 4).astype(float)[..., :3].mean((0, 1))

    stone = [seen((0.52, 0.29, 0.1), a) for a in (-2.0, -1.6, -1.2)]
    assert np.ptp(stone, axis=0).max() < 3.0
    # The point of the ball that faces the key light: one of the three directions is its mirror image.
    facing = (-0.5 + 0.27 * 0.44, -0.36 - 0.27 * 0.52, -0.37 + 0.27 * 0.733)
    ball = [seen(facing, a) for a in (-2.5, -0.9, 0.5)]
    assert np.ptp(ball, axis=0).max() > 12.0


def test_edge_pixels_have_straight_alpha(tracer: Tracer) -> None:
    """A partly covered pixel has the object's colour, not mixed with the background."""
    size = 60
    picture = tracer.render(look_at_centre(0.4, 0.3), focal(size), size).astype(int)
    alpha = picture[..., 3]
    partial = (alpha > 0) & (alpha < 255)
    assert 0.01 < partial.mean() < 0.2
    assert set(np.unique(alpha)) <= {round(255 * k / 9) for k in range(10)}
    assert (picture[alpha == 0] == 0).all()
    # Black mixed in would halve the brightness of half-covered pixels.
    half, full = picture[(alpha > 80) & (alpha < 180)][:, :3].mean(), picture[alpha == 255][:, :3].mean()
    assert 0.7 < half / full < 1.4


def test_scene_is_deterministic_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    first = builtin_scene(tmp_path / "a", progress=lambda done, total: calls.append((done, total)), **SMALL)
    assert calls == [(i, 7) for i in range(1, 8)]
    second = builtin_scene(tmp_path / "b", **SMALL)
    assert first.name == second.name
    assert folder_bytes(first) == folder_bytes(second)

    def refuse(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(builtin, "_make", refuse)
    assert builtin_scene(tmp_path / "a", **SMALL) == first


def test_different_parameters_have_different_folders(tmp_path: Path) -> None:
    names = {
        builtin_scene(tmp_path, size=size, train_views=n, test_views=1).name for size, n in ((4, 1), (5, 1), (4, 2))
    }
    assert len(names) == 3


def test_generator_digest_is_stable() -> None:
    assert generator_digest() == generator_digest()
    assert len(generator_digest()) == 64


@pytest.mark.parametrize("harm", ["remove", "truncate", "manifest", "empty"])
def test_damaged_scene_is_rebuilt(tmp_path: Path, harm: str) -> None:
    folder = builtin_scene(tmp_path, **SMALL)
    whole = folder_bytes(folder)
    if harm == "remove":
        (folder / "train" / "view_003.png").unlink()
    elif harm == "truncate":
        (folder / "test" / "view_001.png").write_bytes(whole["test/view_001.png"][:-5])
    elif harm == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        shutil.rmtree(folder)
        folder.mkdir()
    assert builtin_scene(tmp_path, **SMALL) == folder
    assert folder_bytes(folder) == whole


def test_interrupted_creation_leaves_no_scene_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        builtin_scene(tmp_path, progress=stop, **SMALL)
    assert [p for p in (tmp_path / "builtin").iterdir() if p.is_dir()] == []
    # The next call removes what a killed process left behind.
    name = builtin._name_of(BuiltinConfig(**SMALL))
    (tmp_path / "builtin" / f"{name}.part-killed").mkdir()
    assert builtin_scene(tmp_path, **SMALL).name == name
    assert [p.name for p in (tmp_path / "builtin").iterdir() if p.is_dir()] == [name]


def test_concurrent_processes_create_one_scene(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from raymine.scenes.builtin import builtin_scene;"
        "print(builtin_scene(Path(sys.argv[1]), size=24, train_views=5, test_views=2))"
    )
    pair = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=60)[0].strip() for process in pair}
    assert [process.returncode for process in pair] == [0, 0]
    assert len(paths) == 1
    assert len(list(Path(paths.pop()).glob("train/*.png"))) == 5


def test_invalid_size_or_unwritable_cache_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`size` of the built-in scene must be between 4 and 4096, got 0"):
        builtin_scene(tmp_path, size=0)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match="cannot be written"):
        builtin_scene(tmp_path / "file" / "cache", **SMALL)
