"""The viewer of a run that trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raymine.contracts import Renderer
from raymine.errors import ResourceError
from raymine.experiment import LiveRun, Observers, SilentObserver, StartInfo, train
from raymine.listening import Place, listen
from raymine.viewer import LiveViewer
from raymine.viewer.draw import Look
from raymine.viewer.live import SHARE
from raymine.viewer.pacing import Budget
from raymine.viewer.panel import Panel
from support.disc_scene import write_scene_of_eight
from support.runs import request
from support.screens import FakeClient

pytest.importorskip("viser")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


class Joins(SilentObserver):
    """Connects a client when the run starts, if it is wanted."""

    def __init__(self, viewer: LiveViewer, joins: bool, look: Look) -> None:
        self.viewer, self.joins, self.look = viewer, joins, look
        self.client: FakeClient | None = None

    def on_start(self, info: StartInfo) -> None:
        server = self.viewer.server
        assert server is not None
        assert info.source is not None
        if self.joins:
            server.presenter.changed(self.look)
            self.client = FakeClient(info.source.frames[0].pose, width=64, height=48)
            server.presenter.joined(self.client)


def trained(
    folder: Path,
    *,
    joins: bool,
    steps: int,
    look: Look,
    renderer: Callable[[LiveRun], Renderer] = lambda live: live.renderer(),
) -> tuple[Joins, list[int]]:
    """Train with the viewer. renderer: what it gets when it asks for one. The client, and how often it asked."""
    viewer = LiveViewer(Place())
    watcher, made = Joins(viewer, joins, look), [0]

    class Counts(SilentObserver):
        """Counts the renderers that the viewer asks for."""

        def on_burst(self, live: LiveRun) -> None:
            def counted() -> Renderer:
                made[0] += 1
                return renderer(live)

            viewer.on_burst(replace(live, renderer=counted))

        def on_start(self, info: StartInfo) -> None:
            viewer.on_start(info)

    scene = folder / "scene"
    if not scene.exists():
        write_scene_of_eight(scene)
    train(request(scene, folder / f"run-{joins}", steps=steps), observer=Observers([Counts(), watcher]))
    viewer.close()
    assert viewer.server is None
    return watcher, made


def test_no_work_is_done_when_nobody_is_connected(tmp_path: Path) -> None:
    watcher, made = trained(tmp_path, joins=False, steps=30, look=Look())
    assert made == [0]
    assert watcher.viewer.seconds_drawn == watcher.viewer.seconds_trained == 0.0


def test_client_gets_pictures_within_the_share_of_the_time(tmp_path: Path) -> None:
    watcher, made = trained(tmp_path, joins=True, steps=600, look=Look())
    viewer, client = watcher.viewer, watcher.client
    assert client is not None
    assert len(client.pictures) >= 1
    assert made[0] >= len(client.pictures)
    points = viewer._occupied()
    assert points is not None
    assert points.shape[1] == 3
    # One picture may take longer than was expected of it.
    assert viewer.seconds_drawn <= SHARE * (viewer.seconds_drawn + viewer.seconds_trained) + 1.0


def test_page_is_told_of_progress_without_a_picture_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Panel, "tell", lambda _, *paragraphs: told.append(paragraphs[0]))
    monkeypatch.setattr(Budget, "affords", lambda *_: False)
    _, made = trained(tmp_path, joins=True, steps=60, look=Look())
    assert made == [0]
    assert told[0].startswith("**Training**, step ")
    assert told[-1] == "Training has ended."


@pytest.mark.parametrize("told", ["CUDA error: out of memory", "Triton Error [CUDA]: out of memory"])
def test_memory_that_runs_out_for_a_picture_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(Panel, "tell", lambda _, *paragraphs: said.append(paragraphs))
    monkeypatch.setattr("raymine.viewer.live._TELL", 0.0)

    def renderer(_: LiveRun) -> Renderer:
        raise RuntimeError(told)

    _, made = trained(tmp_path, joins=True, steps=500, look=Look(), renderer=renderer)
    assert made[0] > 0
    assert any(f"could not be drawn: {told}" in line for lines in said for line in lines)


def test_hard_samples_of_the_nearest_photo_are_shown_while_it_trains(tmp_path: Path) -> None:
    watcher, _ = trained(tmp_path, joins=True, steps=1000, look=Look("hard"))
    assert watcher.client is not None
    assert watcher.client.pictures
    # The photo has 16x16 pixels; the canvas, 64x48, has bars beside it.
    assert {picture.shape for picture in watcher.client.pictures} == {(16, 21, 3)}
    assert (watcher.client.pictures[-1][:, 0] == 128).all()


def test_port_in_use_is_an_error_before_training(tmp_path: Path) -> None:
    with listen(Place()) as taken, pytest.raises(ResourceError, match="is in use"):
        LiveViewer(Place(port=taken.getsockname()[1]))
