"""The controls beside the picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raymine.errors import RaymineError

from .camera import orientation_of, pose_of
from .draw import Box, Kind
from .path_editor import PathEditor
from .presenter import Presenter
from .things import Things

if TYPE_CHECKING:
    import viser

_KINDS: dict[str, Kind] = {
    "Colour": "colour",
    "Depth": "depth",
    "Opacity": "opacity",
    "Error at the nearest photo": "error",
    "Hard samples at the nearest photo": "hard",
}


class Panel:
    """Builds the controls and connects them. All clients share them; each has its own camera.

    occupied: gives the centres of occupied cells, or None. export: the folder for camera paths.
    """

    def __init__(
        self,
        server: viser.ViserServer,
        presenter: Presenter,
        things: Things,
        *,
        occupied: Callable[[], np.ndarray | None],
        export: Path,
        run: Path,
    ) -> None:
        self._server, self._presenter, self._things = server, presenter, things
        self._occupied, self._export, self._run = occupied, export, run
        self._editor = PathEditor(presenter.scene)
        gui = server.gui
        self.status = gui.add_markdown("")
        with gui.add_folder("View"):
            self._view()
        with gui.add_folder("Scene"):
            self._scene()
        with gui.add_folder("Crop", expand_by_default=False):
            self._crop()
        with gui.add_folder("Camera path", expand_by_default=False):
            self._path()

    def tell(self, *paragraphs: str) -> None:
        """Show paragraphs of Markdown at the top; empty ones are left out."""
        text = "\n\n".join(filter(None, paragraphs))
        if self.status.content != text:
            self.status.content = text

    def _view(self) -> None:
        gui, presenter = self._server.gui, self._presenter
        kind = gui.add_dropdown("Show", tuple(_KINDS), initial_value="Colour")
        longest = gui.add_slider("Resolution", min=128, max=2048, step=64, initial_value=presenter.look.longest)
        kind.on_update(lambda _: presenter.changed(replace(presenter.look, kind=_KINDS[kind.value])))
        longest.on_update(lambda _: presenter.changed(replace(presenter.look, longest=int(longest.value))))
        if presenter.scene.dynamic:
            moment = gui.add_slider("Time", min=0.0, max=1.0, step=0.005, initial_value=0.0)
            presenter.changed(replace(presenter.look, time=0.0))
            moment.on_update(lambda _: presenter.changed(replace(presenter.look, time=float(moment.value))))

    def _scene(self) -> None:
        gui = self._server.gui
        cameras = gui.add_checkbox("Cameras", False, hint="Training cameras. Click on one to look through it.")
        photos = gui.add_checkbox("Photos", False, hint="The photos in the frustums of the cameras.")
        occupancy = gui.add_checkbox("Occupied cells", False)

        def show_cameras(_: Any) -> None:
            self._things.show_cameras(cameras.value or photos.value, photos.value)

        cameras.on_update(show_cameras)
        photos.on_update(show_cameras)
        occupancy.on_update(lambda _: self._things.show_points(self._occupied() if occupancy.value else None))

    def _crop(self) -> None:
        gui, presenter = self._server.gui, self._presenter
        bounds = presenter.scene.bounds
        active = gui.add_checkbox("Crop to a box", False)
        low = gui.add_vector3("Lowest", bounds.low, step=0.01)
        high = gui.add_vector3("Highest", bounds.high, step=0.01)

        def crop(_: Any) -> None:
            box: Box | None = None
            if active.value:
                pairs = [sorted((float(a), float(b))) for a, b in zip(low.value, high.value, strict=True)]
                box = ((pairs[0][0], pairs[1][0], pairs[2][0]), (pairs[0][1], pairs[1][1], pairs[2][1]))
            self._things.show_box(box)
            presenter.changed(replace(presenter.look, crop=box))

        for control in (active, low, high):
            control.on_update(crop)

    def _path(self) -> None:
        gui, editor = self._server.gui, self._editor
        count = gui.add_markdown("No views yet.")
        add, remove = gui.add_button("Add this view"), gui.add_button("Remove the last view")
        frames = gui.add_number("Frames", 120, min=1, max=10_000, step=1)
        closed = gui.add_checkbox("Back to the start", False)
        preview = gui.add_button("Preview")
        name = gui.add_text("Name", "path")
        save = gui.add_button("Save path")
        told = gui.add_markdown("")

        def counted() -> None:
            count.content = f"{len(editor.keys)} views."

        def add_view(event: Any) -> None:
            if event.client is not None:
                seen = event.client.camera
                editor.add(pose_of(seen.wxyz, seen.position), float(seen.fov), self._presenter.look.time)
                counted()

        def remove_view(_: Any) -> None:
            editor.remove_last()
            counted()

        def play(event: Any) -> None:
            if event.client is not None and editor.keys:
                path = editor.path(int(frames.value), closed=closed.value)
                threading.Thread(target=_play, args=(event.client, path.poses), daemon=True).start()

        def save_path(_: Any) -> None:
            try:
                target = editor.save(self._export, name.value, editor.path(int(frames.value), closed=closed.value))
                told.content = f"Saved as {target}. `raymine render {self._run}` takes it as its path."
            except RaymineError as error:
                told.content = error.message

        add.on_click(add_view)
        remove.on_click(remove_view)
        preview.on_click(play)
        save.on_click(save_path)


def _play(client: Any, poses: np.ndarray, fps: float = 24.0) -> None:
    """Move the camera of a client along a path."""
    for pose in poses:
        wxyz, position = orientation_of(pose)
        with client.atomic():
            client.camera.wxyz, client.camera.position = wxyz, position
        time.sleep(1.0 / fps)
