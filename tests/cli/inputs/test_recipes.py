"""`raymine recipes`."""

from __future__ import annotations

import json

import pytest

from raymine.cli import main
from raymine.recipes import RECIPES


def test_lists_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out for name in RECIPES)
    assert "`raymine train SCENE` chooses a recipe and says why" in out


def test_json_has_memory_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert list(rows) == list(RECIPES)
    ngp, large = rows["ngp"], rows["ngp-large"]
    assert 1e8 < ngp["cuda_bytes"] < large["cuda_bytes"] < 1e10
    assert ngp["page"] == "docs/recipes/ngp.md"
    assert rows["vanilla-grid"]["page"] == "docs/recipes/vanilla.md"


def test_takes_no_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "ngp"]) == 2
    assert "`raymine recipes` takes no such argument: `ngp`" in capsys.readouterr().err
