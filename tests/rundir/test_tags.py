"""Tags of a run: sorted, checked, and none lost when several processes change them at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raymine.errors import ConfigError, RunError
from raymine.files import file_lock
from raymine.rundir import tags
from raymine.rundir.tags import change_tags, read_tags
from support.runs import create_run

WRITER = """
import sys
from pathlib import Path
from raymine.rundir.tags import change_tags
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    change_tags(Path(sys.argv[1]), add=[f"{sys.argv[2]}{number}"])
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    create_run(tmp_path / "run").close()
    return tmp_path / "run"


def test_tags_are_added_and_removed(run: Path) -> None:
    assert change_tags(run, add=["b", "a"]) == ("a", "b")
    assert change_tags(run, remove=["b", "c"]) == read_tags(run) == ("a",)
    with pytest.raises(ConfigError, match="letters, digits"):
        change_tags(run, add=["no/slash"])


def test_tags_of_two_processes_that_write_at_once_are_all_kept(run: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(run)]
    writers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "xy"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert set(read_tags(run)) == {f"{name}{number}" for name in "xy" for number in range(40)}


def test_a_run_that_trains_can_be_tagged(tmp_path: Path) -> None:
    with create_run(tmp_path / "busy"):
        assert change_tags(tmp_path / "busy", add=["a"]) == ("a",)


def test_a_lock_that_is_never_released_ends_with_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "_PATIENCE", 0.1)
    with file_lock(run / ".tags.json.lock"), pytest.raises(RunError, match="are locked by another process"):
        change_tags(run, add=["a"])
