"""The script that runs nerfacc's own tests: device, version, what is left out, exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import peer_tests
from support.paths import environment

PASSING = """
import torch
import tqdm
import nerfacc

device = "cuda:0"


def test_version_and_device():
    assert nerfacc.__version__ == "0.3.5"
    assert torch.zeros(1, device="cuda").device == torch.zeros(1, device=device).device == torch.device("cpu")
    assert list(tqdm.trange(2)) == [0, 1]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    tests = tmp_path / "checkout" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_scan.py").write_text(PASSING)
    (tests / "test_vdb.py").write_text("import fvdb\n")
    return tests.parent


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "support.peer_tests", str(checkout), *options]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def test_tests_run_on_the_given_device_against_the_given_version(checkout: Path) -> None:
    done = run(checkout, "--version", "0.3", "--", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert run(checkout, "--", "-q").returncode == 1, "another version fails the test"


def test_copies_name_the_device_and_the_checkout_stays_as_it_is(checkout: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    assert [path.name for path in peer_tests.prepare(checkout, folder, "cuda:0", "0.5")] == ["test_scan.py"]
    assert 'device="cuda:0"' in (folder / "test_scan.py").read_text()
    assert (checkout / "tests" / "test_scan.py").read_text() == PASSING


def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "has no tests/test_*.py. Give the folder of a nerfacc checkout." in done.stderr
