"""Deleting runs: only run folders, never one in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.errors import RunError
from raymine.rundir.removal import move_to_trash
from support.runs import create_run


def test_a_run_moves_to_the_trash_as_a_whole(tmp_path: Path) -> None:
    for _ in range(3):
        create_run(tmp_path / "run").close()
        target = move_to_trash(tmp_path / "run")
        assert (target / "manifest.json").exists()
        assert not (tmp_path / "run").exists()
    assert len(list((tmp_path / ".trash").iterdir())) == 3


def test_other_folders_links_and_running_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(RunError, match="is not a run folder"):
        move_to_trash(tmp_path / "photos")
    with (
        create_run(tmp_path / "run"),
        pytest.raises(RunError, match=r"in use by process \d+ .*\. Nothing was deleted\."),
    ):
        move_to_trash(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    with pytest.raises(RunError, match="is a link"):
        move_to_trash(tmp_path / "link")
    assert (tmp_path / "run/manifest.json").exists()
