"""`raymine train --view`, as a command, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from support.browser import Browser, browser
from support.disc_scene import write_scene_of_eight
from support.started import TRAIN, Starter, status

pytest.importorskip("viser")

SECONDS = 12
"""Of training: the page is opened within it. Loading the kernels and drawing do not count."""


def shown(chromium: Browser) -> np.ndarray:
    """The part of the page that neither the controls cover nor a notice of Chromium."""
    return chromium.picture()[160:, :300]


def test_page_shows_the_run_while_it_trains_and_says_when_it_has_ended(tmp_path: Path) -> None:
    write_scene_of_eight(tmp_path / "scene")
    limits = ("--max-seconds", str(SECONDS), "--out", "run")
    with browser() as chromium, Starter(tmp_path).ended() as starter:
        command = starter.start(["raymine", *TRAIN, *limits, "--view", "--port", "0"])
        command.wait_until(lambda: "http://" in command.output)
        address = re.search(r"http://\S+", command.output)
        assert address is not None
        chromium.open(address[0], width=640, height=480)
        page = "document.body.innerText"
        chromium.until(f"/Training, step [0-9]+/.test({page})")
        first = chromium.evaluate(f"+{page}.match(/Training, step ([0-9]+)/)[1]")
        command.wait_until(lambda: shown(chromium).std() > 3)
        chromium.until(f"+{page}.match(/step ([0-9]+)/)[1] > {first}")
        assert command.wait() == 0, command.output
        assert shown(chromium).std() > 3
        chromium.until(f"/Training has ended at step [0-9]+/.test({page})")
    assert status(tmp_path / "run") == "finished"
    assert "Traceback" not in command.output
    assert command.errors() == []
