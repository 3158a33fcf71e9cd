"""What raymine sets of the process that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raymine import machine

_NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def spinning_after(code: str, **given: str) -> str:
    """GOMP_SPINCOUNT in a process of its own after `code`, or "-"."""
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES} | given
    tell = f"import os, sys\n{code}\nprint(os.environ.get('GOMP_SPINCOUNT', '-'))"
    done = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


@pytest.mark.parametrize(
    ("code", "given", "expected"),
    [
        ("import raymine", {}, "-"),
        ("import raymine; raymine.train", {}, "20000"),
        ("from raymine import load", {}, "20000"),
        ("import raymine; raymine.train", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("import raymine; raymine.train", {"OMP_WAIT_POLICY": "ACTIVE"}, "-"),
        ("import torch, raymine; raymine.train", {}, "-"),
        ("from raymine.cli import main; main(['--version'])", {}, "20000"),
    ],
)
def test_idle_threads_sleep_sooner_unless_the_user_or_torch_decided(
    code: str, given: dict[str, str], expected: str
) -> None:
    assert spinning_after(code, **given) == expected


def test_files_that_a_container_keeps_in_memory_count_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LIMIT", "_USED", "_PARTS"):
        monkeypatch.setattr(machine, name, tmp_path / name)
    assert machine._container_bytes() == 1 << 62
    (tmp_path / "_LIMIT").write_text("1000\n")
    (tmp_path / "_USED").write_text("900\n")
    assert machine._container_bytes() == 100
    (tmp_path / "_PARTS").write_text("anon 300\nactive_file 200\ninactive_file 350\n")
    assert machine._container_bytes() == 650
    (tmp_path / "_LIMIT").write_text("max\n")
    assert machine._container_bytes() == 1 << 62
