"""Whole command lines, right and wrong ones: exit codes, messages, JSON, and processes whose terminal is broken."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_lines import RIGHT, TRAIN, WRONG, Line, Place, called

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return Place.make(tmp_path_factory.mktemp("place"))


@pytest.fixture
def here(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(place.folder)
    return place


def content(folder: Path) -> set[str]:
    """Names of all files and folders but locks."""
    return {str(path) for path in folder.rglob("*") if not path.name.startswith(".lock")}


@pytest.mark.parametrize("line", RIGHT, ids=str)
def test_right_command_lines_succeed(line: Line, here: Place) -> None:
    code, out, err = called(here.arguments(line.text))
    assert code == 0, err
    assert "error" not in err
    if "--json" in line.text:
        json.loads(out)
    for word in line.words:
        assert word in out


@pytest.mark.parametrize("line", WRONG, ids=str)
def test_wrong_command_lines_are_refused_in_a_sentence(line: Line, here: Place) -> None:
    """Any exception that is not a message leaves `main`, and fails the test."""
    before = content(here.folder)
    code, out, err = called(here.arguments(line.text))
    assert code == line.code, err
    if line.words:
        assert out == ""
        (message,) = [text for text in err.splitlines() if text.startswith("error: ")]
        assert message.endswith((".", "?"))
    for word in line.words:
        assert word in err
    assert content(here.folder) == before


def run_process(shell: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which `raymine` is the command line of this checkout."""
    script = f'raymine() {{ {shlex.quote(sys.executable)} -m raymine.cli "$@"; }}; {shell}'
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("shell", "code", "word"),
    [
        ("raymine runs --json >/dev/full", 5, "error: The result cannot be written to standard output"),
        ("raymine --help >/dev/full", 5, "error: The result cannot be written to standard output"),
        ("raymine --version >&-", 5, "error: The result cannot be written to standard output"),
        ("raymine --version >&- 2>&-", 5, ""),
        ("raymine train nowhere 2>/dev/full", 3, ""),
        (
            "mkdir lost && cd lost && rmdir ../lost && raymine runs",
            5,
            "error: The folder that you are in no longer exists",
        ),
        ("raymine check nowhere 2>&- <&-", 3, "there is no such folder"),
    ],
)
def test_broken_terminal_gives_an_exit_code_and_no_traceback(shell: str, code: int, word: str, here: Place) -> None:
    done = run_process(shell, here.folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert word in done.stdout + done.stderr


@pytest.mark.parametrize("ending", ["2>/dev/full", "<&- 2>&-"])
def test_training_goes_on_where_messages_cannot_be_written(ending: str, here: Place) -> None:
    name = f"broken-{len(ending)}"
    done = run_process(f"raymine train scene {TRAIN} --steps 1 --json --out {name} {ending}", here.folder)
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "finished"
    assert json.loads((here.folder / name / "manifest.json").read_text())["status"] == "finished"


def test_ascii_terminal_gets_escapes_and_valid_json(here: Place) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}
    done = run_process(
        "raymine check \u00e9\u2603; raymine check \u00e9\u2603 --json 3>&2 2>/dev/null >&3", here.folder, **plain
    )
    assert done.stdout.isascii()
    assert "\\xe9\\u2603: 1 error" in done.stdout
    assert json.loads(done.stderr)["scene"] == "\u00e9\u2603"


def test_name_in_another_encoding_than_the_terminal_is_printed_as_its_bytes(here: Place) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_process("raymine train \u00e9\u2603", here.folder, **plain)
    assert done.returncode == 3
    assert "error: The scene \u00e9\u2603 cannot be read." in done.stderr


@pytest.mark.parametrize("threads", ["0", "1000000"])
def test_impossible_number_of_threads_is_named(threads: str, here: Place) -> None:
    done = run_process("raymine train scene --steps 1", here.folder, NUMBA_NUM_THREADS=threads)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the environment variable NUMBA_NUM_THREADS must be a whole number between 1 and 1024, "
        f"got '{threads}'.\nUnset it to use every core.\n"
    )
