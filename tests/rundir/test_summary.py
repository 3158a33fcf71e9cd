"""The summary of a run: by which protocol its scores were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine.rundir import summarise_run
from support.fake_training import manifest
from support.runs import create_run

MEASURED = {"digest": "abc", "split": "test", "views": 8, "available": 20, "width": 40, "height": 30}


def summarised(path: Path, recorded: object) -> tuple[str, str]:
    with create_run(path) as run:
        run.write_manifest(manifest(status="finished", test_psnr=20.0, quick_protocol=recorded))
    found = summarise_run(path)
    return found.protocol, found.measured


def test_quick_score_has_the_protocol_that_the_manifest_records(tmp_path: Path) -> None:
    assert summarised(tmp_path / "a", MEASURED) == ("quick-abc", "8 of 20 test images up to 40x30")
    assert summarised(tmp_path / "b", {**MEASURED, "views": 20})[1] == "20 test images up to 40x30"
    # A run of an earlier version does not say what it was measured on.
    assert summarised(tmp_path / "c", None) == ("quick", "")


@pytest.mark.parametrize("damaged", [{}, {"digest": 3}, {"digest": "", "views": "8"}])
def test_quick_protocol_that_cannot_be_read_counts_as_unknown(tmp_path: Path, damaged: object) -> None:
    assert summarised(tmp_path / "a", damaged) == ("quick", "")


def test_evaluation_has_its_own_protocol(tmp_path: Path) -> None:
    summarised(tmp_path / "a", MEASURED)
    (tmp_path / "a/eval").mkdir()
    stored = {"psnr": 30.0, "protocol": {**MEASURED, "digest": "def", "views": 20}}
    (tmp_path / "a/eval/metrics.json").write_text(json.dumps(stored))
    found = summarise_run(tmp_path / "a")
    assert (found.protocol, found.measured) == ("def", "20 test images up to 40x30")
