"""What a Lightning Trainer asks for: precision as raymine's own, and several processes as the ranks of one run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from raymine.errors import ConfigError
from raymine.experiment import load_run, train
from raymine.step.distributed.ranks import PeerLostError
from raymine.step.precision import amp_problem
from support import lightning_ranks
from support.disc_scene import write_scene_of_eight
from support.killed_run import TINY
from support.lightning_fits import (
    IGNORED,
    FSDPStrategy,
    MixedPrecision,
    RaymineData,
    assert_equal_bits,
    module_of,
    quiet,
    remedies,
    require_strategy,
    trainer,
)
from support.lightning_ranks import Seen, Watch, keep_in
from support.runs import request

pytestmark = IGNORED


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene_of_eight(tmp_path_factory.mktemp("disc") / "scene")


@pytest.mark.parametrize(("precision", "amp"), [("bf16-mixed", "bf16"), ("16-mixed", "fp16")])
def test_mixed_precision_gives_the_bits_of_the_plain_loop_with_that_amp(
    precision: str, amp: str, scene: Path, tmp_path: Path
) -> None:
    data = RaymineData(scene, views=1)
    # A Trainer on a CPU would replace the name "16-mixed" by "bf16-mixed". This plugin has a scaler for float16.
    plugin = MixedPrecision(precision, "cpu")  # type: ignore[arg-type]
    module, lightning = module_of(data), trainer(12, plugins=[plugin])
    if amp_problem(amp, torch.device("cpu")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"`amp={amp}`"):
            lightning.fit(module, data)
        return
    lightning.fit(module, data)
    assert module.state.config.amp == amp
    assert lightning.precision_plugin is plugin
    train(request(scene, tmp_path / "run", steps=12, recipe="ngp", overrides={**TINY, "amp": amp}))
    assert_equal_bits(module.state, load_run(tmp_path / "run", device="cpu").state)
    with pytest.raises(ConfigError, match=f"trains with amp {amp}, and this Trainer asks for None"):
        trainer(2).fit(module, data)


def test_name_of_a_precision_is_enough(scene: Path) -> None:
    data = RaymineData(scene, views=0)
    module = module_of(data)
    if amp_problem("bf16", torch.device("cpu")):
        pytest.skip("this CPU has no bfloat16")
    trainer(2, precision="bf16-mixed").fit(module, data)
    assert module.state.config.amp == "bf16"


def test_what_cannot_work_is_refused(scene: Path) -> None:
    data = RaymineData(scene, views=0)
    for precision in ("64-true", "bf16-true"):
        with pytest.raises(ConfigError, match=rf"the precision {precision}(.|\n)*'bf16-mixed'"):
            trainer(2, precision=precision).fit(module_of(data), data)
    own = module_of(data, overrides={**TINY, "amp": "fp32"})
    with pytest.raises(ConfigError, match=r"bf16-mixed stands for amp bf16, and the module overrides amp with fp32"):
        trainer(2, precision="bf16-mixed").fit(own, data)
    with pytest.raises(ConfigError, match=r"FSDPStrategy does neither(.|\n)*'ddp_spawn'"):
        require_strategy(FSDPStrategy())


def test_module_that_was_set_up_stays_in_its_process(scene: Path) -> None:
    data = RaymineData(scene, views=0)
    module = module_of(data)
    copy.deepcopy(module)
    trainer(2).fit(module, data)
    with pytest.raises(ConfigError, match="cannot be copied, or sent to other processes"):
        copy.deepcopy(module)


def test_lost_process_is_told_in_the_words_of_lightning() -> None:
    with pytest.raises(PeerLostError, match=r"rank 1 is gone\n(.|\n)*ckpt_path"), remedies():
        raise PeerLostError("rank 1 is gone", hint="resume")


def fit_alone(scene: Path, folder: Path, start: Path | None = None) -> Seen:
    """The fit of `lightning_ranks.main` in this process alone."""
    data, watch = RaymineData(scene, views=2), Watch()
    trainer(20, watch, keep_in(folder)).fit(module_of(data), data, ckpt_path=start)
    return watch.seen


def assert_agree(alone: Seen, several: list[Seen]) -> None:
    """Two ranks end with the same bits, and train what one process trains, up to the order of sums."""
    first, *others = several
    assert first.world == lightning_ranks.PROCESSES
    assert not first.wrapped
    assert all((each.losses, each.psnr, each.state) == (first.losses, first.psnr, first.state) for each in others)
    assert len(first.losses) == len(alone.losses) > 0
    assert first.losses == pytest.approx(alone.losses, rel=1e-3)
    assert first.rays == alone.rays
    assert first.psnr == pytest.approx(alone.psnr, abs=0.02)


def test_two_processes_continue_what_one_has_trained_and_the_reverse(scene: Path, tmp_path: Path) -> None:
    alone = fit_alone(scene, tmp_path / "alone")
    folder = tmp_path / "two"
    folder.mkdir()
    several = lightning_ranks.launch(scene, folder, "ddp", 20, tmp_path / "alone/step=10.ckpt")
    assert_agree(Seen(losses=alone.losses[10:], rays=alone.rays[10:], psnr=alone.psnr), several)
    assert several[0].after == several[0].state
    assert sorted(path.name for path in folder.glob("*.ckpt")) == ["step=15.ckpt", "step=20.ckpt"]
    # One process has logged, each step once.
    rows = (folder / "log/one/metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("loss")
    assert sum(bool(row.split(",")[place]) for row in rows[1:]) == 10

    again = fit_alone(scene, folder, folder / "step=15.ckpt")
    assert again.losses == pytest.approx(alone.losses[15:], rel=1e-3)


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["auto", "ddp_spawn", "ddp_notebook"])
def test_two_processes_train_what_one_does(strategy: str, scene: Path, tmp_path: Path) -> None:
    alone = fit_alone(scene, tmp_path / "alone")
    folder = tmp_path / "two"
    folder.mkdir()
    several = lightning_ranks.launch(scene, folder, strategy, 20)
    assert_agree(alone, several)
    # The process that called `fit` has the trained state, also where others have trained.
    assert several[0].after == several[0].state
