"""The end of a command's process: nothing that was to happen at exit is lost."""

from __future__ import annotations

import subprocess
import sys
import time

PROGRAM = """
import atexit, sys, threading, time
from raymine.cli.leaving import leave

def late():
    time.sleep(0.3)
    print("thread")

class Slow:
    def __del__(self):
        print("destroyed")

kept = Slow()
atexit.register(print, "atexit")
threading.Thread(target=late).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
sys.stdout.write("main ")
leave({code})
"""


def run(code: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{code}", str(code))], capture_output=True, text=True, timeout=60
    )


def test_threads_and_exit_functions_come_to_their_end_and_objects_are_not_destroyed() -> None:
    begin = time.monotonic()
    done = run(3)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "main thread\natexit\n"
    assert time.monotonic() - begin < 30, "a daemon is not waited for"


def test_closed_pipe_is_no_error() -> None:
    program = "import os, sys; from raymine.cli.leaving import leave; print('x' * 10); os.close(1); leave(5)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (5, "")


def test_command_ends_with_its_code() -> None:
    done = subprocess.run([sys.executable, "-m", "raymine", "eval", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 4
    assert "nowhere" in done.stderr
