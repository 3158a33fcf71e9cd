"""The guard of a run: what it remembers, names and says; images that are left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raymine.cli import main
from raymine.contracts import Renderer
from raymine.errors import ConfigError, speaking_of_flags
from raymine.evaluate.hard_images import ImageErrors
from raymine.experiment import load_run, train
from raymine.experiment.prepare import split_training
from raymine.experiment.watchers.guard import ImageGuard, Looks
from raymine.rundir import RunDir
from raymine.scenes import load_scene
from support.disc_scene import write_scene
from support.rings import COUNT, write_ring
from support.runs import StopAt, request


class Errors:
    """`ImageErrors` whose looks are given; nothing is rendered."""

    def __init__(self, looks: Sequence[Sequence[float]], hard: tuple[int, ...] = ()) -> None:
        self.looks, self.hard = list(looks), hard

    def look(self, renderer: object) -> tuple[float, ...]:
        return tuple(self.looks.pop(0))

    def hard_images(self, looks: Looks, renderer: object) -> tuple[int, ...]:
        return self.hard


def guard(errors: Errors, count: int = 3) -> ImageGuard:
    held: Any = errors
    return ImageGuard(held, [f"r_{i}" for i in range(count)], lambda: held)


def test_first_and_latest_look_are_kept() -> None:
    watch = guard(Errors([(1.0,) * 3, (2.0,) * 3, (3.0,) * 3]))
    looks: Looks = []
    for _ in range(3):
        looks = watch.look(looks)
    assert looks == [(1.0,) * 3, (3.0,) * 3]


def test_looks_of_other_images_name_nothing() -> None:
    watch = guard(Errors([], hard=(2, 0)))
    assert watch.hard_images([(1.0,) * 3, (1.0,) * 3]) == ("r_2", "r_0")
    assert watch.hard_images([(1.0,) * 4, (1.0,) * 4]) == ()
    assert watch.hard_images([(1.0,) * 3]) == ()


def test_warning_names_images_and_the_option_that_leaves_them_out() -> None:
    watch = guard(Errors([]), 60)
    told = watch.warning(["r_3", "r_17", "r_40"], Path("runs/x"))
    assert told.startswith(
        "3 of 60 images stay hard while the others improve: r_3, r_17, r_40. Their poses are probably"
    )
    assert told.endswith(
        "Evaluate the split `train` of runs/x to see them, or leave them out with `leave_out=['r_3', 'r_17', 'r_40']`."
    )
    with speaking_of_flags():
        assert "leave it out with --leave-out r_3." in watch.warning(["r_3"], Path("runs/x"))
        assert watch.warning([f"r_{i}" for i in range(25)], Path("runs/x")).count("r_") == 20 * 2
    assert "1 of 60 images stays hard" in watch.warning(["r_3"], Path("runs/x"))


FIRST, LAST = (0.02,) * 5 + (0.05,) + (0.02,) * 6, (0.005,) * 5 + (0.05,) + (0.005,) * 6


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return write_ring(tmp_path / "scene")


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, ...]]:
    """Every look finds that the others have improved and r_5 has not, but for looks in this list, which come first."""
    first = [FIRST]

    def found(self: ImageErrors, renderer: Renderer, pixels: Any) -> tuple[float, ...]:
        images = len(pixels.image) // pixels.each
        if images < COUNT:
            return (0.05,) * images
        return first.pop(0) if first else LAST

    monkeypatch.setattr(ImageErrors, "_errors", found)
    return first


def test_finished_run_names_the_image_that_stays_hard(
    tmp_path: Path, scene: Path, errors: object, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(scene), "--out", str(tmp_path / "run"), "--steps", "8", "--device", "cpu", "--json"]
    assert main([*command, "--recipe", "support.runs:tiny"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["hard_images"] == ["r_5"]
    assert "warning: 1 of 12 images stays hard while the others improve: r_5." in told.err
    assert "leave it out with --leave-out r_5." in told.err
    run = RunDir.open(tmp_path / "run")
    assert run.read_manifest().hard_images == ("r_5",)
    (event,) = [row for row in map(json.loads, run.events.read_text().splitlines()) if row["kind"] == "hard-images"]
    assert (event["level"], event["data"]) == ("warning", {"images": ["r_5"]})


def test_resumed_run_remembers_the_first_look(tmp_path: Path, scene: Path, errors: list[object]) -> None:
    stopped = train(request(scene, tmp_path / "run", steps=64), observer=StopAt(48))
    assert (stopped.status, stopped.hard_images, errors) == ("stopped", (), [])
    assert train(request(scene, tmp_path / "run", steps=64, resume=True)).hard_images == ("r_5",)


def test_clean_run_names_no_image(tmp_path: Path, scene: Path) -> None:
    result = train(request(scene, tmp_path / "run", steps=8))
    assert result.hard_images == RunDir.open(result.run).read_manifest().hard_images == ()


def test_left_out_images_are_not_trained_on_and_recorded(tmp_path: Path, scene: Path) -> None:
    loaded = load_scene(scene)
    assert split_training(loaded, 1, ("r_5",)) == ((0, 1, 2, 3, 4, 7, 8, 9, 10, 11), (6,))
    result = train(request(scene, tmp_path / "run", steps=8, leave_out=("r_5.png",)))
    assert load_run(result.run, device="cpu").config.leave_out == ("r_5",)
    with pytest.raises(ConfigError, match="leave_out"):
        train(request(scene, tmp_path / "run", steps=9, resume=True))
    again = train(request(scene, tmp_path / "run", steps=9, resume=True, leave_out=("train/r_5.png",)))
    assert again.step == 9


def test_unknown_or_all_left_out_images_are_refused_before_anything_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = write_scene(tmp_path / "scene")
    out = tmp_path / "run"
    assert main(["train", str(scene), "--out", str(out), "--steps", "1", "--leave-out", "r_1"]) == 2
    assert "--leave-out: the scene" in capsys.readouterr().err
    everything = [word for name in ("r_0", "r_90", "r_180", "r_270") for word in ("--leave-out", name)]
    assert main(["train", str(scene), "--out", str(out), "--steps", "1", *everything]) == 2
    assert "nothing is left to train on" in capsys.readouterr().err
    assert not out.exists()
