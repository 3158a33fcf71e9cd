"""`raymine demo`: its JSON, names of output folders, and the number of orbit views for the machine's speed."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from raymine.cli import main
from raymine.cli.training import demo
from raymine.cli.training.demo import next_free, orbit_views
from raymine.evaluate import Evaluation, ViewScore
from raymine.experiment.watchers import progress
from raymine.scenes import builtin


def test_next_free_appends_the_first_unused_number(tmp_path: Path) -> None:
    assert next_free(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert next_free(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.parametrize(("seconds", "views"), [(0.01, 60), (0.5, 40), (5.0, 16)])
def test_orbit_has_fewer_views_on_slower_machines(seconds: float, views: int) -> None:
    scores = (ViewScore("a", 30.0, 0.9, 9 * seconds), ViewScore("b", 30.0, 0.9, seconds))
    assert orbit_views(Evaluation(scores, 1.0)) == views


def test_demo_prints_one_json_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = functools.partial(builtin.builtin_scene, size=16, train_views=3, test_views=2)
    monkeypatch.setattr(builtin, "builtin_scene", small)
    monkeypatch.setattr(progress, "builtin_scene", small)
    monkeypatch.setattr(demo, "MOST_VIEWS", 2)
    monkeypatch.setattr(demo, "FEWEST_VIEWS", 2)
    assert main(["demo", "--seconds", "0.2", "--json", "-v"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["run"], found["status"], found["views"]) == ("runs/demo", "finished", 2)
    assert found["test_psnr"] > 0
    assert Path(found["pictures"], "view_000-sheet.png").is_file()
    assert [Path(file).exists() for file in found["files"]] == [True]
    assert Path(found["report"]) == Path("runs/demo/report.html")
    assert "On 2 test views" in Path(found["report"]).read_text()
    assert "Backends: cpu" in err
