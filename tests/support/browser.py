"""A headless Chromium for tests of pages, spoken to over its debugging port. Tests are skipped where there is none."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self.messages: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol. Events that arrive meanwhile are kept in `messages`."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=180))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.messages.append(answer)

    def open(self, url: str, *, width: int = 1000, height: int = 700, dark: bool = False) -> None:
        """Load a page and wait until it is complete."""
        self.call("Page.enable")
        self.call("Network.enable")
        self.call("Runtime.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.messages.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def evaluate(self, code: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, code: str, seconds: float = 180.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(code):
            assert time.monotonic() < end, f"`{code}` did not become true"
            time.sleep(0.1)

    def picture(self) -> np.ndarray:
        """What the page shows, [H, W, 3] uint8."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def fetched(self) -> list[str]:
        """Addresses that the page has asked for over the network, other than itself."""
        events = [m for m in self.messages if m.get("method") == "Network.requestWillBeSent"]
        urls = [event["params"]["request"]["url"] for event in events if event["params"].get("type") != "Document"]
        return [url for url in urls if not url.startswith("data:")]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a Chromium; `pytest.skip` with a reason if it or the package websockets is not installed."""
    program = next((found for found in map(shutil.which, NAMES) if found), None)
    if program is None:
        pytest.skip(f"needs Chromium: none of {', '.join(NAMES)} is installed")
    client = pytest.importorskip("websockets.sync.client")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--use-angle=swiftshader"]
        flags += ["--enable-unsafe-swiftshader", "--hide-scrollbars", "--mute-audio", "--no-first-run"]
        command = [program, *flags, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with client.connect(_address(Path(folder), process), max_size=None, ping_interval=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait(60)


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the first page of a browser that has just been started."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            port = (folder / "DevToolsActivePort").read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=60) as answer:
                pages = [each for each in json.load(answer) if each["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        except (OSError, IndexError):
            pass
        time.sleep(0.1)
    raise AssertionError("Chromium did not start")
