"""What raymine sets of the process that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
