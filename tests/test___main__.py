"""`python -m raymine`."""

from __future__ import annotations

import subprocess
import sys


def test_ctrl_c_while_the_commands_are_loaded_is_told_in_a_sentence() -> None:
    program = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "raymine.cli.bench":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
import raymine.cli
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "error: stopped by Ctrl-C\n"


def test_module_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "raymine", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "nonsense" in done.stderr
