"""How much main memory the images of a run take: chosen by what is free, shown, and without effect on the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import raymine
from raymine import checkpoint
from raymine.cli.app import COMMANDS
from raymine.cli.training.stage_options import require_fits
from raymine.cli.training.train import Train
from raymine.errors import ConfigError, speaking_of_flags
from raymine.experiment import SilentObserver, StartInfo, train
from raymine.experiment.bank_budget import BankBudget, choose_bank_budget
from raymine.experiment.memory import estimate_bytes
from raymine.metrics_log import read_rows
from raymine.scenes.bank import pack
from support.disc_scene import write_scene
from support.fake_training import deterministic
from support.runs import request
from support.scenes import SCENE
from support.step import CONFIG

GIB = 1 << 30
CPU = torch.device("cpu")


class Start(SilentObserver):
    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()
        self.details: tuple[str, ...] = ()

    def on_start(self, info: StartInfo) -> None:
        self.notes, self.details = info.notes, info.details


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A scene of four training images that take 1.4 MB."""
    folder = write_scene(tmp_path / "scene")
    rng = np.random.default_rng(0)
    for image in folder.glob("*/*.png"):
        Image.fromarray(rng.integers(0, 256, (300, 300, 4), dtype=np.uint8)).save(image)
    return folder


def test_images_that_do_not_fit_are_told_and_train_to_the_same_bits(tmp_path: Path, scene: Path) -> None:
    starts, states, rows = [], [], []
    for name, budget in (("in", None), ("out", 1 << 20)):
        start = Start()
        train(request(scene, tmp_path / name, 8, bank_budget=budget), observer=start)
        starts.append(start)
        found = checkpoint.load_latest(tmp_path / name / "checkpoints")
        assert found is not None
        states.append(found.checkpoint)
        rows.append(deterministic(read_rows(tmp_path / name / "metrics.jsonl")))
    inside, outside = starts
    assert not any(note.startswith("Images:") for note in inside.notes)
    assert [note for note in inside.details if note.startswith("Images: 1.4 MiB, within the ")]
    told = "Images: 1.4 MiB, more than the 1.0 MiB of memory that they may take (`bank_budget`)"
    assert [note for note in outside.notes if note.startswith(told) and "slower" in note]
    assert rows[0] == rows[1]
    assert states[0].scalars == states[1].scalars
    assert all(torch.equal(value, states[1].tensors[name]) for name, value in states[0].tensors.items())
    # It is no part of the config: a resumed run may have another.
    assert (tmp_path / "in/config.json").read_bytes() == (tmp_path / "out/config.json").read_bytes()


@pytest.mark.parametrize(
    ("free", "expected"),
    [(8 * GIB, 4 * GIB), (GIB, 512 << 20), (600 << 20, 512 << 20), (300 << 20, 300 << 20), (0, 1 << 20)],
)
def test_half_of_the_free_memory_is_the_budget(monkeypatch: pytest.MonkeyPatch, free: int, expected: int) -> None:
    monkeypatch.setattr(pack, "free_memory", lambda: free)
    assert pack.reading_budget() == expected


def test_memory_that_training_needs_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = estimate_bytes(CONFIG, SCENE.bounds)
    monkeypatch.setattr(pack, "free_memory", lambda: needed + 8 * GIB)
    assert choose_bank_budget(None, CONFIG, SCENE.bounds, CPU) == BankBudget(4 * GIB)
    assert choose_bank_budget(None, CONFIG, SCENE.bounds, torch.device("cuda")).bytes > 4 * GIB
    assert choose_bank_budget(5 << 20, CONFIG, SCENE.bounds, CPU) == BankBudget(5 << 20, stated=True)


def test_a_budget_below_the_least_is_refused(tmp_path: Path) -> None:
    with speaking_of_flags(), pytest.raises(ConfigError, match=r"--bank-budget must be at least 1\.0 MiB, got 3 B"):
        request(tmp_path, None, bank_budget=3)


def test_command_line_python_and_pipelines_take_a_size(tmp_path: Path, scene: Path) -> None:
    assert Train("builtin", bank_budget="2GB").request().bank_budget == 2 * GIB
    require_fits("p.toml: [train]", "train", "bank_budget", "2GB", COMMANDS)
    with pytest.raises(ConfigError, match="A size must look like 20GB or 512MB, got `lots`"):
        Train("builtin", bank_budget="lots").request()
    with pytest.raises(ConfigError, match=r"`bank_budget` must be at least 1\.0 MiB, got 7 B"):
        raymine.train(scene, out=tmp_path / "run", bank_budget=7)
