"""Standard output belongs to the thread of the command."""

from __future__ import annotations

import threading

import pytest

from raymine.terminal import guarded_streams


def test_what_other_threads_print_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded_streams():
        thread = threading.Thread(target=print, args=("from beside",))
        thread.start()
        thread.join()
        print("result")
    out, err = capsys.readouterr()
    assert (out, err) == ("result\n", "from beside\n")
