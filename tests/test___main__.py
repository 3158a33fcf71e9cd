"""`python -m raymine`."""

from __future__ import annotations

import subprocess
import sys


def test_module_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "raymine", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "nonsense" in done.stderr
