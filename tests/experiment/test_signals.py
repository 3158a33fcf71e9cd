"""Stop signals: the second one ends the process at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from raymine.experiment import signals

SCRIPT = """
import os, runpy, signal, sys, time
StopSignals = runpy.run_path(sys.argv[1])["StopSignals"]
with StopSignals() as stop:
    print("ready", flush=True)
    deadline = time.monotonic() + 10
    while stop.received is None and time.monotonic() < deadline:
        time.sleep(0.01)
    print(stop.name, flush=True)
    time.sleep(10)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ on Windows")
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(second: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, str(signals.__file__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        process.send_signal(second)
        assert process.wait(timeout=5) == -second
