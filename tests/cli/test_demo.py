"""`raymine demo`: names of output folders, and the number of orbit views for the machine's speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.cli.demo import next_free, orbit_views
from raymine.evaluate import Evaluation, ViewScore


def test_next_free_appends_the_first_unused_number(tmp_path: Path) -> None:
    assert next_free(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert next_free(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.parametrize(("seconds", "views"), [(0.01, 60), (0.5, 40), (5.0, 16)])
def test_orbit_has_fewer_views_on_slower_machines(seconds: float, views: int) -> None:
    scores = (ViewScore("a", 30.0, 0.9, 9 * seconds), ViewScore("b", 30.0, 0.9, seconds))
    assert orbit_views(Evaluation(scores, 1.0)) == views
