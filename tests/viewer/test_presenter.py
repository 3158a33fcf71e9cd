"""Which picture is drawn next, at which size, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine.cameras import look_at
from raymine.contracts import Rendered
from raymine.evaluate.metrics import psnr
from raymine.experiment import LoadedRun, load_run, train
from raymine.export import render_view
from raymine.pictures import depth_picture, error_picture
from raymine.scenes.bank import open_bank
from raymine.step.hardness import HardView
from raymine.viewer.camera import camera_of
from raymine.viewer.draw import Look, letterboxed
from raymine.viewer.pacing import STAGES
from raymine.viewer.photos import Photos
from raymine.viewer.presenter import REST, Model, Presenter
from raymine.viewer.things import occupied_points
from support.disc_scene import write_scene_of_eight
from support.moving_scene import moving_data, moving_scene
from support.novel_views import forward_scene
from support.runs import request
from support.screens import FakeClient

POSE = look_at((0.0, -4.0, 1.0), (0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("view")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMINE_CACHE", str(folder / "cache"))
        train(request(write_scene_of_eight(folder / "scene"), folder / "run", steps=60))
        return load_run(folder / "run", device="cpu")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def no_photos(index, longest, *, unwanted):  # type: ignore[no-untyped-def]
    raise AssertionError("no photo is looked at")


def model_of(loaded: LoadedRun) -> Model:
    return Model(loaded.renderer, no_photos)


def presenter_of(loaded: LoadedRun, clock: Clock) -> Presenter:
    return Presenter(loaded.scene, torch.device("cpu"), now=clock)


def rendered(loaded: LoadedRun, client: FakeClient) -> np.ndarray:
    camera = camera_of(client.camera, client.camera.image_width, client.camera.image_height)
    background = loaded.scene.background or (0.0, 0.0, 0.0)
    return render_view(loaded.renderer, camera, POSE, loaded.scene.bounds, background=background).colour


def test_nothing_is_drawn_without_clients(loaded: LoadedRun) -> None:
    presenter = presenter_of(loaded, Clock())
    assert not presenter.watched
    assert presenter.cost() is None
    assert not presenter.draw_next(model_of(loaded))
    client = FakeClient(POSE)
    presenter.joined(client)
    presenter.left(client)
    assert not presenter.draw_next(model_of(loaded))
    assert client.pictures == []


def test_pictures_grow_while_the_camera_rests_and_the_last_matches_render(loaded: LoadedRun) -> None:
    clock = Clock()
    presenter, client = presenter_of(loaded, clock), FakeClient(POSE)
    presenter.speed.rays_per_second = 10_000.0
    presenter.joined(client)
    while presenter.draw_next(model_of(loaded)):
        presenter.speed.rays_per_second = 10_000.0
    widths = [picture.shape[1] for picture in client.pictures]
    assert widths == sorted(set(widths))
    assert widths[0] < 40
    assert widths[-1] == 80
    truth = rendered(loaded, client)
    assert truth.std() > 0.02
    assert psnr(torch.from_numpy(client.pictures[-1] / 255.0).float(), torch.from_numpy(truth)) > 45


def test_moving_camera_gets_small_pictures_until_it_rests(loaded: LoadedRun) -> None:
    clock = Clock()
    presenter, client = presenter_of(loaded, clock), FakeClient(POSE)
    presenter.speed.rays_per_second = 10_000.0
    presenter.joined(client)
    presenter.moved(client)
    assert presenter.draw_next(model_of(loaded))
    assert not presenter.draw_next(model_of(loaded))
    clock.now += REST + 0.01
    assert presenter.draw_next(model_of(loaded))
    assert client.pictures[1].shape[0] > client.pictures[0].shape[0]


def test_picture_is_abandoned_when_the_camera_moves_meanwhile(loaded: LoadedRun) -> None:
    presenter, client = presenter_of(loaded, Clock()), FakeClient(POSE)
    presenter.joined(client)
    presenter._screens[1].stage = STAGES - 1

    class Moves:
        def render(self, rays, background):  # type: ignore[no-untyped-def]
            presenter.moved(client)
            return loaded.renderer.render(rays, background)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raymine.export.frames.WATCHED_PIECE", 1000)
        assert not presenter.draw_next(Model(Moves(), no_photos))
    assert client.pictures == []
    assert presenter._screens[1].stage == 0


def test_kinds_crop_and_the_model_change_the_picture(loaded: LoadedRun) -> None:
    presenter, client = presenter_of(loaded, Clock()), FakeClient(POSE)
    presenter.joined(client)

    def latest(look: Look) -> np.ndarray:
        presenter.changed(look)
        while presenter.draw_next(model_of(loaded)):
            pass
        return client.pictures[-1]

    colour, depth, opacity = latest(Look()), latest(Look("depth")), latest(Look("opacity"))
    assert opacity.std() > 5
    assert (depth != opacity).any()
    empty = latest(Look(crop=((5.0, 5.0, 5.0), (6.0, 6.0, 6.0))))
    assert (empty == 255).all() or empty.std() < 1e-6
    half = latest(Look("opacity", crop=((-1.5, -1.5, -1.5), (0.0, 1.5, 1.5))))
    assert half[:, :38].mean() == pytest.approx(opacity[:, :38].mean(), rel=0.35)
    assert half[:, 50:].mean() < 0.2 * max(1.0, opacity[:, 50:].mean()) + 1
    before = len(client.pictures)
    assert not presenter.draw_next(model_of(loaded))
    presenter.model_changed()
    assert presenter.draw_next(model_of(loaded))
    assert len(client.pictures) == before + 1
    assert colour.shape == opacity.shape
    assert depth_picture is not None


def test_error_is_that_of_the_nearest_photo(loaded: LoadedRun) -> None:
    frames = loaded.scene.of_split("train")
    with open_bank(loaded.scene, frames) as bank:
        photos = Photos(loaded.scene, frames, lambda: bank)
        pose = loaded.scene.frames[frames[2]].pose
        moved = pose.copy()
        moved[:, 3] *= 1.05
        assert photos.nearest(moved) == 2
        presenter = Presenter(loaded.scene, torch.device("cpu"), photos=photos)
        client = FakeClient(moved)
        presenter.joined(client)
        presenter.changed(Look("error"))
        assert presenter.draw_next(model_of(loaded))
        # The photo is square; the canvas is not.
        assert client.pictures[-1].shape == (16, 21, 3)
        assert (client.pictures[-1][:, [0, -1]] == 128).all()
        assert presenter.caption == "Error against r_2.png"


def test_hard_samples_are_those_of_the_nearest_photo(loaded: LoadedRun) -> None:
    frames = loaded.trained
    with open_bank(loaded.scene, frames) as bank:
        photos = Photos(loaded.scene, frames, lambda: bank)
        presenter = Presenter(loaded.scene, torch.device("cpu"), photos=photos)
        client = FakeClient(loaded.scene.frames[frames[3]].pose, width=16, height=16)

        def hard_view(index: int, longest: int, *, unwanted: Callable[[], bool]) -> HardView | None:
            return loaded.hard_view(bank, frames, index, longest, unwanted=unwanted)

        presenter.joined(client)
        presenter.changed(Look("hard"))
        assert presenter.draw_next(Model(loaded.renderer, hard_view))
        found = loaded.hard_view(bank, frames, 3, 16)
        assert found is not None
        np.testing.assert_array_equal(client.pictures[-1], found.picture())
        assert 0.1 < found.hardest_tenth <= 1
        assert presenter.caption.startswith("Hard samples of r_3.png: ")
        assert f"{100 * found.hardest_tenth:.0f} %" in presenter.caption
        # A camera that moves meanwhile ends it.
        presenter.changed(Look("hard"))
        presenter._screens[1].stage = STAGES - 1

        def moves(index: int, longest: int, *, unwanted: Callable[[], bool]) -> HardView | None:
            presenter.moved(client)
            return hard_view(index, longest, unwanted=unwanted)

        assert not presenter.draw_next(Model(loaded.renderer, moves))
        presenter.changed(Look())
        assert presenter.draw_next(model_of(loaded))
        assert presenter.caption == ""


def test_without_photos_colour_is_drawn(loaded: LoadedRun) -> None:
    presenter, client = presenter_of(loaded, Clock()), FakeClient(POSE)
    presenter.joined(client)
    presenter.changed(Look("hard"))
    assert presenter.draw_next(model_of(loaded))
    assert client.pictures[-1].shape[2] == 3
    assert presenter.caption == ""


def test_photo_of_a_scene_that_moves_is_near_in_time_too() -> None:
    base = forward_scene()
    frames = tuple(replace(base.frames[0], time=time) for time in (0.0, 0.5, 1.0))
    photos = Photos(replace(base, frames=frames), (0, 1, 2), pytest.fail)
    assert [photos.nearest(frames[0].pose, time) for time in (0.1, 0.6, 1.0)] == [0, 1, 2]
    assert photos.nearest(frames[0].pose) == 0


def test_moment_of_the_slider_is_drawn_and_errors_are_those_at_the_moment_of_the_photo() -> None:
    """A renderer whose red is the time of the ray."""

    class Clockwork:
        def render(self, rays, background):  # type: ignore[no-untyped-def]
            colour = torch.stack([rays.time, torch.zeros_like(rays.time), torch.zeros_like(rays.time)], 1)
            return Rendered(colour, torch.ones(len(rays)), torch.ones(len(rays)), torch.empty(0))

    scene, data = moving_scene(3), moving_data(moving_scene(3))
    photos = Photos(scene, (0, 1, 2), lambda: data.images)
    presenter = Presenter(scene, torch.device("cpu"), photos=photos)
    client = FakeClient(scene.frames[1].pose, width=24, height=24)
    presenter.joined(client)
    for time in (0.0, 0.6):
        presenter.changed(Look(time=time))
        assert presenter.draw_next(Model(Clockwork(), no_photos))
        assert (client.pictures[-1][..., 0] == round(255 * time)).all()
    presenter.changed(Look("error", time=0.6))
    assert presenter.draw_next(Model(Clockwork(), no_photos))
    assert presenter.caption == "Error against view_1.png"
    shown = np.zeros((24, 24, 3), np.float32)
    shown[..., 0] = 0.5
    np.testing.assert_array_equal(client.pictures[-1], error_picture(shown, photos.photo(1)))


@pytest.mark.parametrize(("canvas", "shape"), [((40, 10), (10, 40)), ((10, 40), (40, 10)), ((7, 7), (10, 10))])
def test_letterboxed_picture_has_the_proportions_of_the_canvas(canvas: tuple[int, int], shape: tuple[int, int]) -> None:
    picture = np.zeros((10, 10, 3), dtype=np.uint8)
    made = letterboxed(picture, canvas)
    assert made.shape[:2] == shape
    assert (made == 0).sum() == picture.size


def test_occupied_points_lie_where_the_model_is(loaded: LoadedRun) -> None:
    points = occupied_points(loaded.renderer)
    assert points is not None
    assert len(points) > 10
    assert (np.abs(points) <= 1.5).all()
    assert occupied_points(object()) is None  # type: ignore[arg-type]
