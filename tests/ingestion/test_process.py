"""Steps in processes of their own: results, messages, crashes, interruptions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raymine.ingestion import process
from raymine.ingestion.process import StepFailed, run_step


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A script that stands for the worker: tests write its content."""
    script = tmp_path / "worker.py"
    real = subprocess.Popen

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert command[1:3] == ["-m", "raymine.ingestion.worker"]
        return real([sys.executable, str(script), command[3]], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(process.subprocess, "Popen", popen)
    return script


START = "import json, os, sys\njob = json.loads(sys.stdin.readline())\n"


def test_result_messages_and_progress(worker: Path, tmp_path: Path) -> None:
    worker.write_text(
        START
        + """for i in range(3):
    print(f"I2026 1.cc:2] Processed file [{i}/3]", file=sys.stderr)
open(job["result"], "w").write(json.dumps({"names": job["names"] * 2}))
"""
    )
    seen: list[tuple[int, int]] = []
    log = tmp_path / "log"
    names = ["a" * 100_000]
    found = run_step("features", {"names": names}, log, total=3, progress=lambda a, b: seen.append((a, b)))
    assert found == {"names": names * 2}
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert log.read_text().count("Processed file") == 3
    assert not list(tmp_path.glob("*.result"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("os.abort()", "signal 6"),
        ("sys.exit(3)", "exit code 3"),
        ("pass", "exit code 0"),
        ("open(job['result'], 'w').write('{'); os._exit(1)", "exit code 1"),
    ],
)
def test_failure_names_the_log_and_the_last_message(worker: Path, tmp_path: Path, code: str, said: str) -> None:
    worker.write_text(f"{START}print('E2026 1.cc:2] all is lost', file=sys.stderr, flush=True)\n{code}\n")
    with pytest.raises(StepFailed, match=said) as caught:
        run_step("matches", {}, tmp_path / "log")
    assert "all is lost" in caught.value.message
    assert str(tmp_path / "log") in caught.value.hint


def test_interruption_ends_the_process(worker: Path, tmp_path: Path) -> None:
    worker.write_text(
        START
        + f"""open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
print("I2026 1.cc:2] Processed file [1/3]", file=sys.stderr, flush=True)
import time
time.sleep(60)
"""
    )

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_step("features", {}, tmp_path / "log", total=3, progress=stop)
    assert time.monotonic() - started < 30
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
