"""Camera paths made in the viewer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.cameras import look_at
from raymine.cli import main
from raymine.errors import ConfigError
from raymine.experiment import load_run, train
from raymine.export import from_file, render_view
from raymine.pictures import to_uint8
from raymine.viewer.path_editor import PathEditor
from support.disc_scene import write_scene_of_eight
from support.novel_views import forward_scene
from support.runs import request


def test_saved_path_is_read_back_by_render(tmp_path: Path) -> None:
    scene = forward_scene()
    editor = PathEditor(scene)
    poses = [look_at((x, -3.0, 1.0), (0.0, 0.0, 0.0)) for x in (0.0, 1.0, 2.0)]
    for pose in poses:
        editor.add(pose, 0.8)
    editor.add(poses[0], 0.1)
    editor.remove_last()
    made = editor.path(9, size=(40, 30))
    target = editor.save(tmp_path / "export", "my path!", made)
    assert target == tmp_path / "export" / "my-path.json"
    found = from_file(target, scene)
    np.testing.assert_allclose(found.poses, made.poses, atol=1e-6)
    np.testing.assert_allclose(found.poses[[0, 4, 8]], poses, atol=1e-6)
    assert (found.cameras[0].width, found.cameras[0].height) == (40, 30)
    assert found.cameras[0].fy == pytest.approx(15 / np.tan(0.4))


def test_names_never_leave_the_folder_and_nothing_is_overwritten(tmp_path: Path) -> None:
    editor = PathEditor(forward_scene())
    editor.add(look_at((1.0, -3.0, 1.0), (0.0, 0.0, 0.0)), 0.8)
    path = editor.path(1)
    names = [editor.save(tmp_path, name, path).name for name in ("../../x", "x.json", "..", "/etc/passwd", "x")]
    assert names == ["x.json", "x-2.json", "path.json", "passwd.json", "x-3.json"]


def test_path_without_views_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match="no views yet"):
        PathEditor(forward_scene()).path(10)


def test_render_command_takes_the_saved_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    train(request(write_scene_of_eight(tmp_path / "scene"), run, steps=40))
    loaded = load_run(run, device="cpu")
    editor = PathEditor(loaded.scene)
    poses = [look_at((4.0, x, 1.0), (0.0, 0.0, 0.0)) for x in (-1.0, 1.0)]
    for pose in poses:
        editor.add(pose, 0.7)
    target = editor.save(run / "export", "flight", editor.path(3, size=(20, 16)))
    words = ["render", str(run), "--path", str(target), "--out", str(tmp_path / "frames"), "--device", "cpu", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["views"], told["width"], told["height"]) == ("flight", 3, 20, 16)
    files = sorted((tmp_path / "frames").glob("*.png"))
    assert len(files) == 3
    camera = editor.path(3, size=(20, 16)).cameras[0]
    background = loaded.scene.background or (0.0, 0.0, 0.0)
    for pose, file in ((poses[0], files[0]), (poses[1], files[2])):
        truth = to_uint8(render_view(loaded.renderer, camera, pose, loaded.scene.bounds, background=background).colour)
        shown = np.asarray(Image.open(file).convert("RGB")).astype(int)
        assert truth.std() > 3
        assert np.abs(shown - truth).max() <= 2
