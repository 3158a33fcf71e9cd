"""The files in examples/pipelines: each is planned whole, with the commands and the settings that its head suggests."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from raymine import recipes
from raymine.cli import main
from raymine.pipeline import load_pipeline
from raymine.pipeline.reading import read_toml
from support.disc_scene import write_scene_of_eight
from support.scene_writers import ring, write_image, write_llff

EXAMPLES = Path(__file__).parents[2] / "examples/pipelines"
FILES = sorted(EXAMPLES.glob("*.toml"))
NEEDED = {"train": ["pack"], "eval": ["train"], "render": ["train"], "export": ["train"], "verify": ["eval"]}


def write_captures(entries: list[dict[str, object]], root: Path) -> None:
    """For each scene a small capture where the file has it: photos, LLFF where it is divided, Blender's format else."""
    for entry in entries:
        if "photos" in entry:
            for i in range(3):
                write_image(root / str(entry["photos"]) / f"{i}.png", (48, 32), seed=i)
        elif "downscale" in entry:
            write_llff(ring(), root / str(entry["path"]))
        else:
            write_scene_of_eight(root / str(entry["path"]))


def suggested(path: Path) -> tuple[list[str], list[str]]:
    """What the head of the file says: the arguments of its command, and those that try it small."""
    head = "\n".join(line.removeprefix("#") for line in path.read_text().splitlines() if line.startswith("#"))
    command = re.search(r"raymine (pipeline .+)", head)
    small = re.search(r"try it small: (.+)", head)
    assert command, f"{path.name} says how it is run"
    assert small, f"{path.name} says how it is tried small"
    return shlex.split(command[1]), shlex.split(small[1])


def stages_with_needs(asked: list[str], photos: bool) -> set[str]:
    wanted = set(asked) | ({"ingest"} if photos else set())
    while more := {need for name in wanted for need in NEEDED.get(name, [])} - wanted:
        wanted |= more
    return wanted


def test_there_are_files() -> None:
    assert {path.name for path in FILES} >= {"mipnerf360.toml", "nerf_synthetic.toml", "photos.toml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_stage_of_every_scene_is_planned(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES.parents[1])
    document = read_toml(path, "pipeline file")
    entries = document["scene"]
    write_captures(entries, tmp_path / "data")
    command, small = suggested(path)
    assert Path(command[1]) == path.relative_to(EXAMPLES.parents[1])
    command[command.index("--root") + 1] = str(tmp_path / "data")
    out = ["--out", str(tmp_path / "out")]
    for more in ([], small):
        assert main([*command, *more, *out, "--dry-run", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        for entry in entries:
            name = str(entry.get("name") or Path(str(entry.get("photos") or entry["path"])).name)
            planned = {row["stage"]: row for row in rows if row["scene"] == name}
            assert set(planned) == stages_with_needs(document["stages"], "photos" in entry), name
            assert {row["verdict"] for row in planned.values()} == {"run"}
            reasons = [row["why"] for row in planned.values()]
            assert all(why == "it has not been finished yet" or why.endswith(" must run first") for why in reasons)
        assert len(rows) == len(entries) * len(planned), "no other scene is planned"
    assert not (tmp_path / "out").exists(), "a dry run makes nothing"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipes_exist_and_results_stay_out_of_the_examples(path: Path, tmp_path: Path) -> None:
    write_captures(read_toml(path, "pipeline file")["scene"], tmp_path)
    pipeline = load_pipeline(path, root=tmp_path)
    assert EXAMPLES not in pipeline.out.resolve().parents
    for scene in pipeline.scenes:
        recipe = scene.options["train"].get("recipe")
        assert recipe is None or recipe in recipes.RECIPES
