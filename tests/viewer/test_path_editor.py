"""Camera paths made in the viewer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymine.cameras import look_at
from raymine.errors import ConfigError
from raymine.export import from_file
from raymine.viewer.path_editor import PathEditor
from support.novel_views import forward_scene


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
