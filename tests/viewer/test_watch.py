"""The viewer of a trained run in a browser."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.evaluate.metrics import psnr
from raymine.experiment import load_run, train
from raymine.export import render_view
from raymine.listening import Place
from raymine.viewer import ViewServer, watch_run
from raymine.viewer.camera import camera_of, pose_of
from raymine.viewer.pacing import STAGES
from support.browser import browser
from support.disc_scene import write_scene_of_eight
from support.runs import request

pytest.importorskip("viser")
# viser and its parts close sockets when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@contextmanager
def shown(folder: Path, place: Place) -> Iterator[ViewServer]:
    train(request(write_scene_of_eight(folder / "scene"), folder / "run", steps=60))
    servers: list[ViewServer] = []
    end = threading.Event()
    loaded = load_run(folder / "run", device="cpu")
    arguments = {"started": servers.append, "stopped": end.is_set}
    thread = threading.Thread(target=watch_run, args=(loaded, place), kwargs=arguments)
    thread.start()
    try:
        limit = time.monotonic() + 300
        while not servers and time.monotonic() < limit:
            time.sleep(0.05)
        yield servers[0]
    finally:
        end.set()
        thread.join(120)
        assert not thread.is_alive()


def wait_until_drawn(server: ViewServer) -> None:
    end = time.monotonic() + 300
    while not all(screen.stage == STAGES for screen in server.presenter._screens.values()):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_page_shows_what_render_gives_and_follows_the_camera(tmp_path: Path) -> None:
    with browser() as chromium, shown(tmp_path, Place()) as server:
        chromium.open(server.url, width=640, height=480)
        end = time.monotonic() + 300
        while not server.presenter.watched and time.monotonic() < end:
            time.sleep(0.1)
        wait_until_drawn(server)
        client = server.clients()[0]
        loaded = load_run(tmp_path / "run", device="cpu")

        def compared() -> np.ndarray:
            """What the page shows, once it is what `render` gives: the browser has to decode and draw it first."""
            camera = camera_of(client.camera, client.camera.image_width, client.camera.image_height)
            pose = pose_of(client.camera.wxyz, client.camera.position)
            scene = loaded.scene
            truth = render_view(
                loaded.renderer, camera, pose, scene.bounds, background=scene.background or (0.0, 0.0, 0.0)
            )
            # The controls cover the right side, and a notice of Chromium the upper left.
            part = np.s_[160:, :300]
            wanted = torch.from_numpy(truth.colour[part])
            assert wanted.std() > 0.01
            end = time.monotonic() + 120
            while True:
                found = chromium.picture()[part]
                score = psnr(torch.from_numpy(found / 255.0).float(), wanted)
                if score > 30 or time.monotonic() > end:
                    break
                time.sleep(0.5)
            assert score > 30
            return found

        before = compared()
        pictures = server.presenter.pictures
        client.camera.position = np.asarray(client.camera.position) * 1.4
        end = time.monotonic() + 300
        while server.presenter.pictures == pictures and time.monotonic() < end:
            time.sleep(0.1)
        wait_until_drawn(server)
        after = compared()
        assert (before != after).mean() > 0.01


def test_a_server_with_a_token_lets_nobody_in_without_it(tmp_path: Path) -> None:
    with shown(tmp_path, Place(token="secret")) as server:
        base = f"http://127.0.0.1:{server.url.rpartition(':')[2].partition('/')[0]}"
        assert server.url.endswith("/?token=secret")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(base, timeout=120)
        assert refused.value.code == 401
        asked = urllib.request.Request(base, headers={"Cookie": f"raymine_view_{base.rpartition(':')[2]}=secret"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert b"<html" in answer.read()


def test_it_ends_after_its_seconds_without_anybody_looking(tmp_path: Path) -> None:
    train(request(write_scene_of_eight(tmp_path / "scene"), tmp_path / "run", steps=5))
    found = watch_run(load_run(tmp_path / "run", device="cpu"), Place(), seconds=0.5)
    assert 0.5 <= found.seconds < 60
    assert found.pictures == 0
