"""`raymine demo`: free names, and as many views as the machine can render."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.cli.demo import next_free, orbit_views
from raymine.evaluate import Evaluation, ViewScore


def test_next_free_name(tmp_path: Path) -> None:
    assert next_free(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert next_free(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.parametrize(("seconds", "views"), [(0.01, 60), (0.5, 40), (5.0, 16)])
def test_demo_renders_what_the_machine_can(seconds: float, views: int) -> None:
    scores = (ViewScore("a", 30.0, 0.9, 9 * seconds), ViewScore("b", 30.0, 0.9, seconds))
    assert orbit_views(Evaluation(scores, 1.0)) == views
