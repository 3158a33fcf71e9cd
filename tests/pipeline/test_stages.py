"""What makes stages run again: scenes and videos given as files, damaged checkpoints, depth maps, the best model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from PIL import Image

from raymine.pipeline import PipelineResult, SceneSpec, load_pipeline, run_pipeline
from raymine.pipeline import run as module
from raymine.pipeline.stages import STAGES, Site, folder_stamp, scene_stamp, stamp
from raymine.pipeline.table import scores
from support.depth_scene import write_depth_scene
from support.disc_scene import write_scene_of_eight
from support.in_this_process import InThisProcess
from support.scene_writers import ring, write_image, write_transforms

TESTS = Path(__file__).parents[1]
TRAIN = '[train]\nrecipe = "support.runs:tiny"\nsteps = {0}\ndevice = "cpu"\nthreads = 1\n[eval]\nallow = ["support"]\n'


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages run in this process, in a folder of their own."""
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", "1"), ("NUMBA_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=None))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def go(told: list[str] | None = None) -> PipelineResult:
    return run_pipeline(load_pipeline(Path("p.toml")), tell=(told if told is not None else []).append)


def ran(result: PipelineResult) -> list[str]:
    assert result.exit_code == 0, result
    return [task.stage for task in result.tasks if task.state == "done"]


def test_replaced_video_is_ingested_again(tmp_path: Path) -> None:
    video = tmp_path / "clip.mp4"
    video.write_bytes(b"one")
    site = Site(SceneSpec("a", None, video), tmp_path / "o/a", {})
    first = STAGES["ingest"].uses(site)
    assert STAGES["ingest"].uses(site) == first
    (tmp_path / "other.mp4").write_bytes(b"two")
    os.replace(tmp_path / "other.mp4", video)
    assert STAGES["ingest"].uses(site) != first


def test_image_beside_a_scene_that_is_a_file_counts() -> None:
    write_transforms(ring(), Path("s"))
    Path("p.toml").write_text('stages = ["check", "pack"]\nout = "s/o"\n[[scene]]\npath = "s/transforms.json"\n')
    assert ran(go()) == ["check", "pack"]
    assert ran(go()) == [], "results that lie beside the images do not count"
    write_image(Path("s/images/photo_03.png"), (48, 32), seed=99)
    assert ran(go()) == ["check", "pack"]
    # Another file of the same folder is another scene.
    Path("s/other.json").write_text(Path("s/transforms.json").read_text())
    assert scene_stamp(str(Path("s/other.json"))) != scene_stamp(str(Path("s/transforms.json")))


def test_stamps_leave_out_what_they_are_told_to(tmp_path: Path) -> None:
    (tmp_path / "s/o").mkdir(parents=True)
    (tmp_path / "s/a.png").write_text("1")
    before = folder_stamp(tmp_path / "s")
    (tmp_path / "s/o/made").write_text("2")
    assert folder_stamp(tmp_path / "s") != before
    assert folder_stamp(tmp_path / "s", tmp_path / "s/../s/o") == before
    assert stamp(tmp_path / "s", tmp_path / "s/o") == before
    assert stamp(tmp_path / "none") == "-"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 255
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [Path.unlink, flip])
def test_lost_or_damaged_tensors_are_made_again(harm: Callable[[Path], None]) -> None:
    write_scene_of_eight(Path("a"))
    Path("p.toml").write_text('stages = ["train", "eval"]\nretries = 0\n' + TRAIN.format(3) + '[[scene]]\npath = "a"\n')
    first = go()
    run = Path(first.results["a"]["train"]["run"])
    saved = sorted((run / "checkpoints").glob("step-*.safetensors"))
    harm(saved[-1])
    second = go()
    assert "train" in ran(second)
    assert second.results["a"]["train"] == first.results["a"]["train"]
    # Of no checkpoint at all, training begins anew.
    for path in saved:
        harm(path)
    assert "train" in ran(go())
    assert ran(go()) == []


def test_lost_best_checkpoint_is_made_again() -> None:
    write_scene_of_eight(Path("a"))
    held_out = TRAIN.format(8).replace("[eval]", 'hold_out = 2\n[eval]\ncheckpoint = "best"')
    Path("p.toml").write_text('stages = ["eval"]\nretries = 0\n' + held_out + '[[scene]]\npath = "a"\n')
    first = go()
    assert ran(first)[-1] == "eval"
    assert ran(go()) == []
    checkpoints = Path(first.results["a"]["train"]["run"]) / "checkpoints"
    best = json.loads((checkpoints / "best.json").read_text())["step"]
    assert best < 8, "going on from the latest checkpoint would not make it again"
    (checkpoints / f"step-{best:08d}.safetensors").unlink()
    again = go()
    assert "train" in ran(again)
    assert again.results["a"]["train"] == first.results["a"]["train"]
    assert json.loads((checkpoints / "best.json").read_text())["step"] == best


def test_new_run_with_the_same_tensors_is_evaluated_too() -> None:
    write_scene_of_eight(Path("a"))
    text = (
        'stages = ["verify"]\nretries = 0\n'
        + TRAIN.format(3)
        + '[[scene]]\npath = "a"\n[verify]\nallow = ["support"]\n'
    )
    Path("p.toml").write_text(text)
    first = go()
    Path("p.toml").write_text(text.replace("threads", "verbose = true\nthreads"))
    second = go()
    assert {"train", "eval"} <= set(ran(second))
    trained = [each.results["a"]["train"] for each in (first, second)]
    assert trained[0]["tensors"] == trained[1]["tensors"]
    assert trained[0]["run"] != trained[1]["run"]
    assert Path(trained[1]["run"], "eval/metrics.json").exists()


def test_edited_depth_map_is_trained_on_again() -> None:
    write_depth_scene(Path("a"), [f"d{i}.png" for i in range(9)])
    text = TRAIN.format(3).replace("steps", "depth_loss = 0.1\nsteps")
    Path("p.toml").write_text('stages = ["train"]\nretries = 0\n' + text + '[[scene]]\npath = "a"\n')
    first = go()
    assert ran(first) == ["pack", "train"]
    Image.fromarray(np.full((8, 8), 2000, np.uint16)).save("a/d3.png")
    second = go()
    assert ran(second) == ["pack", "train"]
    assert second.results["a"]["train"]["tensors"] != first.results["a"]["train"]["tensors"]
    # The first frame is for tests: its depth map is not trained on.
    Image.fromarray(np.full((8, 8), 2000, np.uint16)).save("a/d0.png")
    assert ran(go()) == ["pack"]


def test_scene_without_depth_maps_has_no_key_for_them() -> None:
    site = Site(SceneSpec("a", "a"), Path("o/a"), {})
    packed = STAGES["pack"].result(site, {"scene_digest": "s", "train": "t", "test": "u", "bytes": 3})
    assert packed == {"scene_digest": "s", "train": "t", "test": "u"}
    assert STAGES["train"].uses(Site(site.scene, site.folder, {"pack": packed})) == {"scene_digest": "s", "train": "t"}


def test_best_checkpoint_is_evaluated_exported_and_verified() -> None:
    write_scene_of_eight(Path("a"))
    text = TRAIN.format(8).replace("[eval]", 'hold_out = 2\n[eval]\ncheckpoint = "best"')
    allowed = 'allow = ["support"]\n'
    export = '[export]\nto = ["m.safetensors", "n.safetensors", "m.onnx", "m.ply"]\nformat = "points"\nlongest = 20\n'
    whole = f'{text}{export}{allowed}checkpoint = "best"\n[verify]\n{allowed}[[scene]]\npath = "a"\n'
    Path("p.toml").write_text('stages = ["export", "verify"]\nretries = 0\n' + whole)
    first = go()
    assert ran(first)[-1] == "verify"
    assert first.results["a"]["eval"]["step"] < 8
    site = Site(SceneSpec("a", "a"), Path("o/a"), first.results["a"])
    verified = [word for word in STAGES["verify"].command(site) if word.startswith("--model=")]
    assert [Path(word).name for word in verified] == ["m.safetensors", "n.safetensors", "m.onnx"]
    # Of the latest checkpoint, which was not evaluated.
    Path("p.toml").write_text(Path("p.toml").read_text().replace('"support"]\ncheckpoint = "best"', '"support"]'))
    second = go()
    failed = next(task for task in second.tasks if task.state == "failed")
    assert failed.stage == "verify"


def test_all_scores_of_an_evaluation_reach_the_table() -> None:
    printed = {"psnr": 30.0, "ssim": 0.9, "lpips_alex": 0.1, "count": 1, "images": [{"name": "a", "psnr": 30.0}]}
    eval_stage = next(stage for stage in STAGES.values() if stage.name == "eval")
    found = eval_stage.result(cast(Site, None), printed)
    assert scores({"s": {"eval": found}})[0].lpips_alex == 0.1
