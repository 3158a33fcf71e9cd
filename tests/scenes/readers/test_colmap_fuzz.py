"""500 damaged COLMAP models: each is refused with a sentence or read rightly, and `check` and `load` agree."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from support.mutate import mutated_bytes, mutated_numbers, mutated_words
from support.scene_fuzz import fuzz, tiny_capture
from support.scene_writers import points_near, write_colmap

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.timeout(200)]


def mutated_binary(path: Path, data: bytes, random: Random) -> bytes:
    return mutated_numbers(data, random) if random.random() < 0.6 else mutated_bytes(data, random)


def mutated_text(path: Path, data: bytes, random: Random) -> bytes:
    return mutated_words(data.decode(), random).encode() if random.random() < 0.6 else mutated_bytes(data, random)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_damaged_models(binary: bool, tmp_path: Path) -> None:
    model = ("OPENCV", 4, [10.0, 10.0, 6.0, 4.0, 0.01, 0.0, 0.001, 0.0])
    write_colmap(tiny_capture(), tmp_path, binary=binary, model=model, points=points_near((0.0, 0.0, 0.0), 30))
    files = sorted((tmp_path / "sparse/0").iterdir())
    assert fuzz(tmp_path, files, range(250), mutated_binary if binary else mutated_text) == {"refused", "fine"}
