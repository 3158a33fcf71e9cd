"""`raymine pack`: digests of the images of each split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine.cli import main


def packed(scene: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["pack", str(scene), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_digests_follow_the_content_of_each_split(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = packed(scene, capsys)
    assert first == packed(scene, capsys)
    (scene / "test/r_0.png").write_bytes((scene / "test/r_1.png").read_bytes())
    second = packed(scene, capsys)
    assert (second["train"], second["scene_digest"]) == (first["train"], first["scene_digest"])
    assert second["test"] != first["test"]
    assert main(["pack", str(scene), "--downscale", "0"]) == 2
    assert main(["pack", "nowhere"]) == 3
