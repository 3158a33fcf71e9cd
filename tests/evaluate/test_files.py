"""The files of an evaluation: which pictures are written, by how many threads, and what a failure leaves."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from raymine import pictures, workers
from raymine.contracts import Rays, Rendered
from raymine.errors import ConfigError, ResourceError
from raymine.evaluate import Evaluation, PictureChoice, evaluate_views
from raymine.evaluate.files import FEW, KINDS, unique_names
from support.known_views import FakeRig, ListOfImages, ShiftedTruth, random_images

SIX = [(12, 16)] * 6


def evaluate(
    out: Path,
    source: ListOfImages | None = None,
    shift: float = 0.1,
    pictures: PictureChoice = "all",
    indices: list[int] | None = None,
) -> Evaluation:
    source = random_images(*SIX) if source is None else source
    return evaluate_views(
        ShiftedTruth(source, shift),
        FakeRig(source),  # type: ignore[arg-type]
        source,
        background=(1.0, 1.0, 1.0),
        out_dir=out,
        pictures=pictures,
        indices=indices,
    )


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below `folder`, but for the seconds in metrics.json."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    scores = json.loads(found["metrics.json"])
    for view in (scores, *scores["images"]):
        view["seconds"] = 0
    return {**found, "metrics.json": json.dumps(scores).encode()}


def files_of(views: int) -> set[str]:
    return {"metrics.json", *(f"images/{i:04d}-{kind}.png" for i in range(views) for kind in KINDS)}


def test_several_threads_write_the_files_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for threads in (1, 4):
        monkeypatch.setattr(workers, "cores", lambda threads=threads: threads)
        evaluate(tmp_path / str(threads))
        written.append(contents(tmp_path / str(threads)))
    assert written[0].keys() == files_of(6)
    assert written[0] == written[1]


@pytest.mark.parametrize(("choice", "views"), [("all", 6), ("few", FEW), ("none", 0)])
def test_choice_of_pictures(tmp_path: Path, choice: PictureChoice, views: int) -> None:
    evaluation = evaluate(tmp_path, pictures=choice)
    assert len(evaluation.views) == 6
    assert contents(tmp_path).keys() == files_of(views)
    assert json.loads((tmp_path / "metrics.json").read_text())["count"] == 6


def test_few_pictures_of_fewer_views(tmp_path: Path) -> None:
    evaluate(tmp_path, pictures="few", indices=[0, 1])
    assert contents(tmp_path).keys() == files_of(2)


def test_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`pictures` must be one of all, few, none, got 'some'"):
        evaluate(tmp_path / "out", pictures="some")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("second", "indices", "views"), [("none", None, 0), ("few", None, FEW), ("all", [0, 1, 2], 3), ("all", None, 6)]
)
def test_pictures_of_two_evaluations_do_not_mix(
    tmp_path: Path, second: PictureChoice, indices: list[int] | None, views: int
) -> None:
    both, alone = tmp_path / "both", tmp_path / "alone"
    evaluate(both, shift=0.1)
    evaluate(both, shift=0.2, pictures=second, indices=indices)
    evaluate(alone, shift=0.2, pictures=second, indices=indices)
    assert contents(both) == contents(alone)
    assert contents(both).keys() == files_of(views)


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    """Only pictures of views that the earlier metrics.json lists are removed, and none outside of `images`."""
    own = [tmp_path / "images" / "holiday-depth.png", tmp_path / "x-pred.png", tmp_path / "images" / "notes.txt"]
    (tmp_path / "images").mkdir()
    for path in own:
        path.write_text("mine")
    (tmp_path / "metrics.json").write_text(json.dumps({"images": [{"name": "../x"}, {"name": 3}, "y", {}]}))
    evaluate(tmp_path, pictures="none")
    assert [path.read_text() for path in own] == ["mine"] * 3


@pytest.mark.parametrize("text", ["", "[]", '{"images": 3}', "{"])
def test_metrics_that_cannot_be_read_are_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.json").write_text(text)
    evaluate(tmp_path, pictures="few")
    assert contents(tmp_path).keys() == files_of(FEW)


def test_failed_picture_ends_with_an_error_and_keeps_the_earlier_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(tmp_path, shift=0.1)
    before = contents(tmp_path)
    save = pictures.save_png

    def fail_once(path: Path, image: np.ndarray) -> None:
        if path.name == "0002-error.png":
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, image)

    monkeypatch.setattr(pictures, "save_png", fail_once)
    words = f"Cannot write the picture: no space left on the disk of {tmp_path}/images/0002-error.png"
    with pytest.raises(ResourceError, match=words):
        evaluate(tmp_path, shift=0.2)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "metrics.json"]


def test_scores_that_cannot_be_written_keep_the_earlier_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(tmp_path, shift=0.1)
    before = contents(tmp_path)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(ResourceError, match="Cannot write the metrics: no space left on the disk"):
        evaluate(tmp_path, shift=0.2, pictures="none")
    monkeypatch.undo()
    assert contents(tmp_path) == before


def test_failed_rendering_keeps_the_earlier_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate(tmp_path)
    before = contents(tmp_path)
    render = ShiftedTruth.render

    def stop_at_third(self: ShiftedTruth, rays: Rays, background: Tensor) -> Rendered:
        if rays.origins[0, 0] == 2:
            raise KeyboardInterrupt
        return render(self, rays, background)

    monkeypatch.setattr(ShiftedTruth, "render", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path, shift=0.3)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "metrics.json"]


def test_few_views_wait_for_their_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads, at most four views are unfinished while the next one is rendered."""
    monkeypatch.setattr(workers, "cores", lambda: 2)
    lock, rendered, written, most = threading.Lock(), [0], [0], [0]
    render, save = ShiftedTruth.render, pictures.save_png

    def counted(self: ShiftedTruth, rays: Rays, background: Tensor) -> Rendered:
        with lock:
            most[0] = max(most[0], rendered[0] - written[0] // len(KINDS))
            rendered[0] += 1
        return render(self, rays, background)

    def slow(path: Path, image: np.ndarray) -> None:
        time.sleep(0.002)
        save(path, image)
        with lock:
            written[0] += 1

    monkeypatch.setattr(ShiftedTruth, "render", counted)
    monkeypatch.setattr(pictures, "save_png", slow)
    source = random_images(*[(12, 16)] * 20)
    evaluate(tmp_path, source)
    assert contents(tmp_path).keys() == files_of(20)
    assert 1 <= most[0] <= 4


def test_unique_names_are_file_safe() -> None:
    assert unique_names(["a", "a", "x/y z", "a-2", "..", ""]) == ["a", "a-2", "x_y_z", "a-2-2", "view", "view-2"]
