"""Training with a Lightning Trainer: the same bits as the plain loop, exact checkpoints, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from raymine.errors import CheckpointError, ConfigError, TrainingError
from raymine.experiment import load_run, train
from raymine.experiment.drive import NON_FINITE_LIMIT
from support.disc_scene import write_scene_of_eight
from support.killed_run import TINY
from support.lightning_fits import (
    IGNORED,
    Callback,
    ModelCheckpoint,
    RaymineData,
    RaymineModule,
    Trainer,
    assert_equal_bits,
    module_of,
    quiet,
    trainer,
)
from support.runs import request

pytestmark = IGNORED


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene_of_eight(tmp_path_factory.mktemp("disc") / "scene")


def test_trainer_gives_the_bits_and_the_psnr_of_the_plain_loop(scene: Path, tmp_path: Path) -> None:
    result = train(request(scene, tmp_path / "run", steps=40, evaluate_views=2, recipe="ngp"))
    data = RaymineData(scene, views=2)
    module, lightning = module_of(data), trainer(40)
    lightning.fit(module, data)
    assert lightning.global_step == module.state.step == 40
    assert_equal_bits(module.state, load_run(tmp_path / "run", device="cpu").state)
    assert float(lightning.callback_metrics["test_psnr"]) == pytest.approx(result.test_psnr, abs=1e-4)
    assert {"loss", "train_psnr", "share_trained", "rays", "learning_rate"} <= lightning.callback_metrics.keys()


def test_resumed_fit_gives_the_bits_of_an_uninterrupted_one(scene: Path, tmp_path: Path) -> None:
    data = RaymineData(scene, hold_out=1, epoch_steps=8)
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=10, save_top_k=-1, filename="{step}")
    whole = module_of(data)
    trainer(20, keep).fit(whole, data)
    saved = tmp_path / "step=10.ckpt"
    # Step 10 lies in the middle of an epoch.
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=10, save_top_k=-1, filename="again-{step}")
    resumed, again = module_of(data), trainer(20, keep)
    again.fit(resumed, data, ckpt_path=str(saved))
    assert again.global_step == resumed.state.step == 20
    assert_equal_bits(whole.state, resumed.state)
    assert "held_out_psnr" in again.callback_metrics

    loaded = RaymineModule.load_from_checkpoint(saved, data=data, recipe="ngp", overrides=TINY)
    trainer(20).validate(loaded, data, verbose=False)
    assert loaded.state.step == 10

    other = module_of(data, overrides={**TINY, "field.grid.levels": 3})
    small = RaymineData(scene, hold_out=1, downscale=2)
    with pytest.raises(CheckpointError, match=r"another config: field\.grid\.levels: 2 in the checkpoint, 3 asked"):
        trainer(20).fit(other, data, ckpt_path=str(saved))
    with pytest.raises(CheckpointError, match="another scene"):
        trainer(20).fit(module_of(small), small, ckpt_path=str(saved))


def test_learning_rate_schedule_is_as_long_as_the_fit(scene: Path) -> None:
    data = RaymineData(scene, views=0, epoch_steps=3)
    by_epochs = module_of(data)
    trainer(-1, max_epochs=2).fit(by_epochs, data)
    assert by_epochs.state.step == by_epochs.state.horizon == 6
    named = module_of(data, steps=50)
    trainer(2).fit(named, data)
    assert (named.state.step, named.state.horizon) == (2, 50)


def test_fit_ends_when_training_stays_non_finite(scene: Path) -> None:
    data = RaymineData(scene, views=0)
    module = module_of(data)

    class Break(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: RaymineModule) -> None:  # type: ignore[override]
            for value in pl_module.state.optimiser.parameters.values():
                value.data.fill_(torch.nan)

    with pytest.raises(TrainingError, match=f"non-finite at step {NON_FINITE_LIMIT - 1}"):
        trainer(40, Break(), enable_checkpointing=False).fit(module, data)


def test_what_cannot_work_is_refused(scene: Path) -> None:
    data = RaymineData(scene)
    with pytest.raises(ConfigError, match="does not exist yet"):
        _ = module_of(data).state
    with pytest.raises(ConfigError, match="not given the data of the module"):
        trainer(2).fit(module_of(data), RaymineData(scene))
    with pytest.raises(ConfigError, match="`epoch_steps` must be at least 1, got 0"):
        RaymineData(scene, epoch_steps=0)


def test_import_without_the_package_names_the_extra() -> None:
    code = (
        "import sys, raymine\n"
        "assert 'raymine.lightning' not in sys.modules\n"
        "sys.modules['pytorch_lightning'] = None\n"
        "from raymine.errors import MissingExtraError\n"
        "try:\n"
        "    import raymine.lightning\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "`raymine.lightning` needs the package `pytorch-lightning`" in done.stdout
    assert "raymine[lightning]" in done.stdout
