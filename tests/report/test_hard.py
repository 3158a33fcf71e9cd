"""Training views of a report with their hard samples."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.experiment import LoadedRun, load_run, train
from raymine.report import write_report
from raymine.report.hard import hard_pictures_of
from support.disc_scene import write_scene_of_eight
from support.reports import write_run
from support.runs import request


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("hard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMINE_CACHE", str(folder / "cache"))
        train(request(write_scene_of_eight(folder / "scene"), folder / "run", steps=60, hold_out=1))
        return load_run(folder / "run", device="cpu")


def test_pictures_are_of_training_views_and_of_those_that_are_asked_for(loaded: LoadedRun) -> None:
    found = hard_pictures_of(lambda: loaded)
    names = [loaded.scene.frames[i].image.stem for i in loaded.trained]
    assert len(names) == 4, "one of five training views is held out"
    assert [each.name for each in found.pictures] == [names[i] for i in (0, 2, 3)]
    assert found.note == ""
    for each in found.pictures:
        assert 0.1 < each.hardest_tenth <= 1
        picture = np.asarray(Image.open(io.BytesIO(each.picture)))
        assert picture.shape == (16, 16, 3)
        assert picture.std() > 5
    wanted = hard_pictures_of(lambda: loaded, names=[names[1], "other"])
    assert [each.name for each in wanted.pictures] == [names[1]]


def test_run_whose_model_cannot_be_opened_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", views=0)
    found = hard_pictures_of(partial(load_run, run, device="cpu"))
    assert found.pictures == ()
    assert found.note.startswith("Hard samples could not be computed: ")
    none = hard_pictures_of(partial(pytest.fail, "the model is not needed"), render=False)
    assert (none.pictures, none.note) == ((), "Pictures of hard samples were not asked for.")


def test_page_shows_them_below_the_curves_of_mining(loaded: LoadedRun, tmp_path: Path) -> None:
    text = write_report((loaded.run.path,), tmp_path / "a.html", device="cpu").path.read_text()
    assert text.index('id="mining"') < text.index("Where the hard samples are") < text.index('id="hard-0-0"')
    assert text.index('id="hard-0-2"') < text.index('id="resources"')
    assert "of the gradient is on the hardest tenth of the pixels." in text
    assert 'alt="Hard samples of the training view r_' in text
