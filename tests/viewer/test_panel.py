"""The controls of the viewer, without a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from raymine.cameras import look_at
from raymine.contracts import Scene
from raymine.export import from_file
from raymine.viewer.panel import Panel
from raymine.viewer.presenter import Presenter
from support.novel_views import forward_scene
from support.screens import FakeClient


class Control:
    """A control: its value, and what happens when a client changes or presses it."""

    def __init__(self, value: Any) -> None:
        self.value = self.content = value
        self.react: Callable[[Any], None] = lambda _: None

    def on_update(self, react: Callable[[Any], None]) -> None:
        self.react = react

    on_click = on_update

    def set(self, value: Any = None, client: Any = None) -> None:
        self.value = value
        self.react(SimpleNamespace(client=client))


class Gui:
    """Keeps every control by its label."""

    def __init__(self) -> None:
        self.controls: dict[str, Control] = {}

    def add_folder(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Callable[..., Control]:
        def add(label: str, *values: Any, **options: Any) -> Control:
            value = label if name == "add_markdown" else options.get("initial_value", values[0] if values else None)
            self.controls[label] = control = Control(value)
            return control

        return add


class Things:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values: self.calls.append((name, *values))


def panel_of(scene: Scene, folder: Path) -> tuple[dict[str, Control], Presenter, Things]:
    gui, things = Gui(), Things()
    presenter = Presenter(scene, torch.device("cpu"))
    points = np.zeros((1, 3))
    server: Any = SimpleNamespace(gui=gui)
    found: Any = things
    Panel(server, presenter, found, occupied=lambda: points, export=folder / "export", run=folder)
    return gui.controls, presenter, things


def test_controls_change_what_is_drawn(tmp_path: Path) -> None:
    controls, presenter, things = panel_of(forward_scene(), tmp_path)
    controls["Show"].set("Depth")
    controls["Resolution"].set(512)
    assert (presenter.look.kind, presenter.look.longest, presenter.look.time) == ("depth", 512, None)
    controls["Lowest"].value, controls["Highest"].value = (1.0, -1.0, 0.0), (0.0, 1.0, 1.0)
    controls["Crop to a box"].set(True)
    assert presenter.look.crop == ((0.0, -1.0, 0.0), (1.0, 1.0, 1.0))
    assert things.calls[-1] == ("show_box", presenter.look.crop)
    controls["Crop to a box"].set(False)
    assert presenter.look.crop is None
    assert "Time" not in controls


def test_cameras_photos_and_cells_are_shown_on_demand(tmp_path: Path) -> None:
    controls, _, things = panel_of(forward_scene(), tmp_path)
    assert things.calls == []
    controls["Cameras"].set(True)
    controls["Photos"].set(True)
    assert things.calls == [("show_cameras", True, False), ("show_cameras", True, True)]
    controls["Occupied cells"].set(True)
    assert things.calls[-1][1].shape == (1, 3)
    controls["Occupied cells"].set(False)
    assert things.calls[-1] == ("show_points", None)


def test_time_slider_is_there_for_scenes_with_times(tmp_path: Path) -> None:
    scene = forward_scene()
    dynamic = replace(scene, frames=tuple(replace(frame, time=0.5) for frame in scene.frames))
    controls, presenter, _ = panel_of(dynamic, tmp_path)
    assert presenter.look.time == 0.0
    controls["Time"].set(0.25)
    assert presenter.look.time == 0.25


def test_path_is_saved_and_the_command_to_render_it_is_shown(tmp_path: Path) -> None:
    scene = forward_scene()
    controls, _, _ = panel_of(scene, tmp_path)
    told = controls[""]
    controls["Save path"].set()
    assert "no views yet" in told.content
    for x in (0.0, 1.0):
        client = FakeClient(look_at((x, -3.0, 1.0), (0.0, 0.0, 0.0)))
        controls["Add this view"].set(client=client)
    assert controls["No views yet."].content == "2 views."
    controls["Frames"].value = 5
    controls["Save path"].set()
    target = tmp_path / "export" / "path.json"
    assert f"Saved as {target}. `raymine render {tmp_path}`" in told.content
    assert len(from_file(target, scene)) == 5
