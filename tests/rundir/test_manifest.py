"""The manifest: description of the environment, and manifests of older versions."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from raymine.rundir import RunDir, describe_environment, summarise_run
from support.fake_training import manifest
from support.runs import create_run


def test_the_environment_names_versions_and_device() -> None:
    found = describe_environment(torch.device("cpu"))
    assert found.packages["torch"] == torch.__version__.split("+")[0] or found.packages["torch"] == torch.__version__
    assert found.device.startswith("cpu: ")
    assert found.threads == torch.get_num_threads()
    assert found.commit is None or len(found.commit.removesuffix("-dirty")) == 40
    json.dumps(found.packages)


def test_manifest_of_an_older_version_is_read(tmp_path: Path) -> None:
    with create_run(tmp_path / "run") as run:
        run.write_manifest(manifest(status="finished", step=7, elapsed=3.5))
    path = tmp_path / "run/manifest.json"
    new = ("train_psnr", "test_psnr", "held_out_psnr", "best_step", "best_held_out_psnr")
    data = {key: value for key, value in json.loads(path.read_text()).items() if key not in new}
    path.write_text(json.dumps({**data, "psnr": 20.5, "best_psnr": 31.5}))
    found = RunDir.open(tmp_path / "run").read_manifest()
    # The old `best_psnr` is the best of several test evaluations, not that of the last model, so it is dropped.
    assert (found.step, found.train_psnr, found.test_psnr, found.best_held_out_psnr) == (7, 20.5, None, None)
    assert summarise_run(tmp_path / "run").status == "finished"
    # A manifest of a run that never trained has both keys and no values.
    path.write_text(json.dumps({**data, "psnr": None, "best_psnr": None}))
    assert RunDir.open(tmp_path / "run").read_manifest().train_psnr is None
