"""`raymine render` and `Run.render` of a scene that moves: moments, sweeps and a still camera."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import raymine
from raymine.cli import main
from raymine.cli.results.render import choose_path, parse_time
from raymine.errors import ConfigError, speaking_of_flags
from support.moving_scene import moving_scene, write_moving_scene
from support.novel_views import forward_scene

SCENE = moving_scene(6)
SMALL = {"batch.samples": 2048, "field.grid.log2_entries": 10, "sampler.resolution": 32, "sampler.every": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> raymine.api.Run:
    folder = tmp_path_factory.mktemp("moving")
    scene = write_moving_scene(folder / "scene")
    return raymine.train(scene, steps=120, out=folder / "run", device="cpu", overrides=SMALL, progress=False)


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as found:
        return np.asarray(found).astype(int)


def test_sweep_moment_and_path_file_choose_the_times() -> None:
    for asked in ("orbit", "spiral", "still"):
        for moment in (None, "sweep"):
            name, path = choose_path(asked, SCENE, 3, None, moment)  # type: ignore[arg-type]
            assert path.times is not None
            assert (name, path.times.tolist()) == (asked, [0.0, 0.5, 1.0])
        name, path = choose_path(asked, SCENE, 3, None, 0.25)
        assert path.times is not None
        assert (name, path.times.tolist()) == (f"{asked}-at-0.25", [0.25] * 3)
    assert choose_path("orbit", forward_scene(), 3, None)[1].times is None


def test_still_camera_is_the_first_test_view_and_renders_one_view_where_nothing_moves() -> None:
    frames = tuple(replace(frame, split="test" if i >= 2 else "train") for i, frame in enumerate(SCENE.frames))
    path = choose_path("still", replace(SCENE, frames=frames), None, None)[1]
    assert len(path) == 120
    assert np.array_equal(path.poses, np.repeat(frames[2].pose[None], 120, 0))
    assert np.array_equal(choose_path("still", SCENE, 2, None)[1].poses[1], SCENE.frames[0].pose)
    assert len(choose_path("still", SCENE, None, None, 0.5)[1]) == 1
    assert len(choose_path("still", forward_scene(), None, None)[1]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.5", r"--time must be in 0\.\.1, got 1\.5: 0 is the first moment, 1 the last"),
        ("-0.1", r"--time must be in 0\.\.1, got -0\.1"),
        ("nan", r"--time must be in 0\.\.1, got nan"),
        ("now", r"--time must be a number in 0\.\.1 or `sweep`, got 'now'"),
    ],
)
def test_wrong_times_are_refused(text: str, words: str) -> None:
    with speaking_of_flags(), pytest.raises(ConfigError, match=words):
        parse_time(text, SCENE)


def test_time_of_a_static_scene_is_refused() -> None:
    for text in ("0.5", "sweep"):
        with speaking_of_flags(), pytest.raises(ConfigError, match="--time was given, and the frames of this scene"):
            parse_time(text, forward_scene())
    assert parse_time(None, forward_scene()) is None


def test_rendered_views_show_their_moments(run: raymine.api.Run, capsys: pytest.CaptureFixture[str]) -> None:
    def rendered(*arguments: str) -> dict[str, object]:
        code = main(["render", str(run.path), *arguments, "--device", "cpu", "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        found: dict[str, object] = json.loads(out)
        return found

    assert rendered("--path", "still", "--frames", "3", "--out", "sweep")["path"] == "still"
    assert rendered("--path", "still", "--time", "1", "--out", "last")["views"] == 1
    first, last = picture(Path("sweep/colour-0000.png")), picture(Path("sweep/colour-0002.png"))
    assert np.abs(first - last).max() > 30, "the ball has moved"
    assert np.abs(last - picture(Path("last/colour-0000.png"))).max() <= 1
    # A file that was written at a moment carries it.
    rendered("--path", "still", "--time", "1", "--write-path", "p.json")
    assert [frame["time"] for frame in json.loads(Path("p.json").read_text())["frames"]] == [1.0]
    rendered("--path", "p.json", "--out", "again")
    assert np.abs(last - picture(Path("again/colour-0000.png"))).max() <= 1
    assert main(["render", str(run.path), "--time", "2"]) == 2
    assert "--time must be in 0..1, got 2" in capsys.readouterr().err


def test_python_renders_and_asks_at_a_time(run: raymine.api.Run) -> None:
    assert run.config.recipe == "dynamic"
    frame = run.scene.frames[0]
    camera = run.camera_at((0.0, -3.0, 0.0), (0.0, 0.0, 0.0))
    start, end = run.render(camera, time=0.0), run.render(camera, time=1)
    assert np.abs(start.colour - end.colour).max() > 0.1
    assert frame.time is not None
    same = run.render(frame.camera, frame.pose, time=frame.time)
    assert np.array_equal(run.render(frame).colour, same.colour), "a frame has its own time"
    with pytest.raises(ConfigError, match=r"`time` is missing: the scene moves.*\n.*time=0\.5"):
        run.render(camera)
    with pytest.raises(ConfigError, match=r"`time` must be in 0\.\.1, got 3"):
        run.render(camera, time=3)
    with pytest.raises(ConfigError, match="`time` is missing"):
        run.density(np.zeros((1, 3)))
    points = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 3))
    assert not np.allclose(run.density(points, time=0.0), run.density(points, time=1.0))
