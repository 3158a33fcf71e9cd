"""User-defined recipes through whole runs: names, run folders, resume, and classes of other packages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pytest

from raymine import recipes
from raymine.cli import main
from raymine.config import ForeignTypeError, RunConfig, from_json
from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.experiment import TrainRequest, load_run, train
from raymine.rundir import RunDir
from raymine.scenes.builtin import builtin_scene
from raymine.step import TrainConfig

OLD = json.loads((Path(__file__).parents[1] / "config" / "schema_1.json").read_text())
TINY: TrainConfig = RunConfig.from_json(OLD).train

MODULE = """
import json
from raymine.config import RunConfig

with open({path!r}) as file:
    TINY = RunConfig.from_json(json.load(file)).train


def tiny(scene, device):
    return TINY
"""


def tiny(scene: Scene, device: str) -> TrainConfig:
    return TINY


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_scene(tmp_path_factory.mktemp("builtin"), size=16, train_views=4, test_views=2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder that holds the module `tiny_recipes`, which is not on sys.path."""
    path = str(Path(__file__).parents[1] / "config" / "schema_1.json")
    (tmp_path / "tiny_recipes.py").write_text(MODULE.format(path=path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("tiny_recipes", None)


def request(scene: Path, recipe: recipes.AnyRecipe, out: Path | None = None, **changes: object) -> TrainRequest:
    base = TrainRequest(scene, recipe, out=out, steps=2, device="cpu", evaluate_views=0)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_command_line_finds_a_recipe_module_in_the_working_folder(
    scene: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(scene), "--recipe", "tiny_recipes:tiny", "--device", "cpu"]
    assert main([*command, "--steps", "2", "--json"]) == 0
    run = Path(json.loads(capsys.readouterr().out)["run"])
    assert run.parent == Path("runs")
    assert run.name == f"{scene.name}-tiny_recipes-tiny-1", "a folder has no colon in its name"
    assert RunDir.open(run).read_config().recipe == "tiny_recipes:tiny"
    assert RunDir.open(run).read_manifest().recipe == "tiny_recipes:tiny"
    assert main([*command, "--steps", "3", "--resume", "--out", str(run)]) == 0
    assert load_run(run, device="cpu").step == 3


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("tiny_recipes:tinny", "error: --recipe tiny_recipes:tinny: `tiny_recipes` has no `tinny`."),
        ("no_such_recipes:x", "error: --recipe no_such_recipes:x was asked for, but there is no module"),
    ],
)
def test_missing_recipe_exits_with_2_and_a_message(
    scene: Path, here: Path, recipe: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(scene), "--recipe", recipe, "--steps", "2", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith(words)
    assert not (here / "runs").exists()


def test_recipe_given_as_function_or_config_trains_and_resumes(scene: Path) -> None:
    by_function = train(request(scene, tiny)).run
    assert RunDir.open(by_function).read_config().recipe == f"{__name__}:tiny"
    by_config = train(request(scene, TINY)).run
    assert by_config == Path(f"runs/{scene.name}-custom-1")
    assert RunDir.open(by_config).read_config().recipe == "custom"
    # A config has no recipe name, so it can resume any run with the same settings.
    for out in (by_config, by_function):
        assert train(request(scene, TINY, out, resume=True, steps=3)).step == 3
    assert RunDir.open(by_function).read_config().recipe == f"{__name__}:tiny"
    other = replace(TINY, batch=replace(TINY.batch, samples=512))
    with pytest.raises(ConfigError, match=r"train\.batch\.samples: 256 in the run, 512 asked"):
        train(request(scene, other, by_config, resume=True))
    with pytest.raises(ConfigError, match=rf'recipe: "custom" in the run, "{__name__}:tiny" asked'):
        train(request(scene, tiny, by_config, resume=True))


def test_run_without_a_limit_takes_default_steps_of_the_recipe(scene: Path) -> None:
    assert train(request(scene, replace(TINY, default_steps=3), steps=None)).step == 3


class Anything(Protocol):
    """An open field."""


@dataclass(frozen=True)
class Holder:
    part: Anything


FOREIGN = "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Part:\n    size: int = 3\n"


def test_run_with_a_foreign_class_opens_only_if_its_package_is_allowed(
    scene: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`RunConfig.from_json` is replaced by one that also reads a foreign class, like a config that names one."""
    run = train(request(scene, TINY, here / "run")).run
    (here / "foreign_part.py").write_text(FOREIGN)
    real = RunConfig.from_json

    def reading(data: object) -> RunConfig:
        sys.modules.pop("foreign_part", None)
        from_json(Holder, {"part": {"type": "foreign_part:Part"}}, "train")
        return real(data)

    monkeypatch.setattr(RunConfig, "from_json", staticmethod(reading))
    with pytest.raises(ForeignTypeError, match=r"train\.part: .*`foreign_part:Part`.* `allow='foreign_part'`"):
        load_run(run, device="cpu")
    assert main(["eval", str(run), "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: train.part: the config wants the class `foreign_part:Part`, and importing")
    assert "--allow foreign_part." in err
    again = ["train", str(scene), "--resume", "--out", str(run), "--device", "cpu"]
    assert main(again) == 2
    assert "--allow foreign_part." in capsys.readouterr().err
    assert main(["eval", str(run), "--device", "cpu", "--allow", "other", "--allow", "foreign_part"]) == 0
    options = ["--frames", "1", "--size", "4x4", "--out", "frames"]
    assert main(["render", str(run), "--device", "cpu", *options]) == 2
    assert main(["render", str(run), "--device", "cpu", "--allow", "foreign_part", *options]) == 0
    assert load_run(run, device="cpu", allow="foreign_part").step == 2
    assert train(request(scene, TINY, run, resume=True, steps=3, allow=("foreign_part",))).step == 3
