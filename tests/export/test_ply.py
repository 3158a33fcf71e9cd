"""PLY files of vertices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymine.errors import ConfigError
from raymine.export.ply import read_ply, write_ply


def test_vertices_come_back_as_they_were(tmp_path: Path) -> None:
    rows = np.zeros(3, [("x", "<f4"), ("name", "<f8"), ("red", "u1")])
    rows["x"], rows["name"], rows["red"] = (1, 2, 3), (0.1, 0.2, 0.3), (0, 128, 255)
    write_ply(tmp_path / "a.ply", rows, ("a comment",))
    assert (read_ply(tmp_path / "a.ply") == rows).all()
    head = (tmp_path / "a.ply").read_bytes()
    assert head.startswith(
        b"ply\nformat binary_little_endian 1.0\ncomment a comment\nelement vertex 3\nproperty float x\n"
    )


def test_cut_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    write_ply(path, np.zeros(3, [("x", "<f4")]))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="cut short"):
        read_ply(path)
    path.write_text("solid")
    with pytest.raises(ConfigError, match="not a binary"):
        read_ply(path)
