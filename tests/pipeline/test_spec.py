"""Pipeline files: what they may hold, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymine.cli import main
from raymine.pipeline import load_pipeline

SCENE = '[[scene]]\npath = "scene"\n'


def own(command: str, needs: str = "", inputs: str = "") -> str:
    """A file with one scene and a stage of one's own."""
    stage = f'name = "a"\ncommand = [{command}]\nneeds = [{needs}]\ninputs = [{inputs}]\n'
    return f"{SCENE}[[stage]]\n{stage}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scene").mkdir()
    return tmp_path


def write(text: str) -> Path:
    path = Path("p.toml")
    path.write_text(text)
    return path


def test_options_of_a_scene_go_over_those_of_the_file(folder: Path) -> None:
    path = write(
        'out = "o"\njobs = 2\nbackoff = 1\n[train]\nsteps = 3\nmining = "hard"\n'
        '[[scene]]\npath = "scene"\n[scene.train]\nsteps = 5\n[[scene]]\npath = "builtin"\nname = "demo"\n'
        "downscale = 2\n"
    )
    found = load_pipeline(path)
    assert (found.out, found.jobs, found.retries, found.backoff) == (folder / "o", 2, 2, 1)
    first, second = found.scenes
    assert (first.name, first.path, first.options["train"]) == (
        "scene",
        str(folder / "scene"),
        {"steps": 5, "mining": "hard"},
    )
    assert (second.name, second.path, second.downscale, second.options["train"]["steps"]) == ("demo", "builtin", 2, 3)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", 2, "names no scene"),
        ("x = [", 2, "is not valid TOML"),
        (f'{SCENE}stages = "x"\n', 2, "unknown key `stages`"),
        (f'stages = "train"\n{SCENE}', 2, "`stages` must be a list"),
        (f'stages = ["trian"]\n{SCENE}', 2, "there is no stage `trian`. Did you mean `train`?"),
        ('[[scene]]\npath = "nowhere"\n', 3, "the scene nowhere does not exist: /"),
        ('[[scene]]\nname = "x"\n', 2, "needs `path`"),
        (SCENE + SCENE, 2, "two scenes have the name `scene`"),
        ('[[scene]]\npath = "scene"\nname = "../x"\n', 2, "must be a folder name"),
        (f"jobs = 0\n{SCENE}", 2, "`jobs` must be a whole number between 1 and 256, got 0"),
        (f"retries = true\n{SCENE}", 2, "`retries` must be a whole number"),
        (f'code = "x"\n{SCENE}', 2, '`code` must be "source" or "version"'),
        (f"[tarin]\n{SCENE}", 2, "unknown key `tarin`. Did you mean `train`?"),
        (f"[train]\nstep = 3\n{SCENE}", 2, "`raymine train` has no option `step`. Did you mean `steps`?"),
        (
            f'[[stage]]\nname = "a"\ncommand = ["x"]\nneeds = ["b"]\n[[stage]]\nname = "b"\ncommand = ["x"]\n'
            f'needs = ["eval", "a"]\n{SCENE}',
            2,
            "the stages form a cycle: a needs b needs a",
        ),
        (f'[[stage]]\nname = "a"\ncommand = ["x"]\nneeds = ["c"]\n{SCENE}', 2, "there is no stage `c`"),
        (f'[[stage]]\nname = "train"\ncommand = ["x"]\n{SCENE}', 2, "the stage `train` is defined twice"),
        (f'[[stage]]\nname = "a"\ncommand = "x"\n{SCENE}', 2, "a list of words"),
        (f'[train]\nout = "x"\n{SCENE}', 2, "[train] may not set `out`; the pipeline does.\nRemove it."),
        (f"[train]\ndownscale = 2\n{SCENE}", 2, "Give `downscale` to the scene"),
        (f'[eval]\nsplit = "train"\n{SCENE}', 2, "[eval] may not set `split`"),
        (f'[train]\nsteps = "many"\n{SCENE}', 2, "[train] --steps must be a whole number, got `many`"),
        (f"[train]\nsteps = [1, 2]\n{SCENE}", 2, "[train] `steps` takes one value, got [1, 2]"),
        (f"[train]\nsteps = true\n{SCENE}", 2, "[train] `steps` must be a value, got true"),
        (f"[train]\ndeterministic = 1\n{SCENE}", 2, "[train] `deterministic` must be true or false, got 1"),
        (f'[train]\nmining = ""\n{SCENE}', 2, "the value of --mining is missing or empty"),
        (f'[eval]\npictures = "some"\n{SCENE}', 2, "[eval] --pictures must be all, few or none, got `some`"),
        (
            f'[export]\nto = "../a.glb"\n{SCENE}',
            2,
            "`to` of [export] must be file names without a folder, got '../a.glb'",
        ),
        (f"[export]\nto = [3]\n{SCENE}", 2, "`to` of [export] must be file names"),
        (own('"x", "{runn}"', needs='"train"'), 2, "a word in braces that is not known: 'runn'"),
        (own('"x", "{run}"', needs='"check"'), 2, "Known: name, folder, scene. A stage that needs `train` also"),
        (own('"x", "{}"', needs=""), 2, "a word in braces that is not known"),
        (own('"x"', inputs='"nowhere.py"'), 2, "an input that does not exist: /"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(
    folder: Path, text: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(text)
    assert main(["pipeline", "p.toml"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: p.toml") or err.startswith("error: The pipeline file p.toml")
    assert words in err
    assert sorted(path.name for path in folder.iterdir()) == ["p.toml", "scene"], "nothing is made"


def test_root_and_only_choose_the_scenes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "data/lego").mkdir(parents=True)
    path = write('root = "nowhere"\n[[scene]]\npath = "lego"\n[[scene]]\npath = "chair"\n')
    (scene,) = load_pipeline(path, root=Path("data"), only=["lego"]).scenes
    assert scene.path == str(folder / "data/lego")
    assert main(["pipeline", "p.toml", "--root", "data"]) == 3
    assert "the scene chair does not exist" in capsys.readouterr().err
    assert main(["pipeline", "p.toml", "--only", "char"]) == 2
    assert "p.toml has no scene `char`. Did you mean `chair`?" in capsys.readouterr().err


def test_settings_of_the_command_line_go_over_those_of_every_scene(folder: Path) -> None:
    path = write(
        '[train]\nsteps = 3\nmining = "hard"\n[[scene]]\npath = "scene"\ndownscale = 2\n[scene.train]\nsteps = 5\n'
        '[[scene]]\npath = "builtin"\n'
    )
    settings = ["train.steps=200", "downscale=8", "train.mining=none", "train.exposure=true", 'eval.allow=["a", "b"]']
    for scene in load_pipeline(path, settings=[*settings, "train.max-seconds = 1.5"]).scenes:
        assert scene.downscale == 8
        assert scene.options["train"] == {"steps": 200, "mining": "none", "exposure": True, "max_seconds": 1.5}
        assert scene.options["eval"] == {"allow": ["a", "b"]}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.steps", "--set train.steps: a value is missing."),
        ("train.steps=", "a value is missing"),
        ("trian.steps=3", "`trian.steps` must be `downscale` or STAGE.OPTION. Did you mean `train`?"),
        ("steps=3", "`steps` must be `downscale` or STAGE.OPTION"),
        ("downscale=half", "--set: `downscale` must be a whole number between 1 and 64, got 'half'"),
        ("train.step=3", "`raymine train` has no option `step`. Did you mean `steps`?"),
        ("train.steps=few", "[train] --steps must be a whole number, got `few`"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(
    folder: Path, setting: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(SCENE)
    assert main(["pipeline", "p.toml", "--set", setting]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert not Path("results").exists(), "nothing is made"


def test_stage_without_a_command_is_named(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from raymine.cli import app

    monkeypatch.delitem(app.COMMANDS, "render")
    write(f'stages = ["render"]\n{SCENE}')
    assert main(["pipeline", "p.toml"]) == 2
    assert "the stage `render` needs the command `raymine render`, which this version" in capsys.readouterr().err


def test_missing_file_and_busy_folder_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from raymine.files import file_lock

    assert main(["pipeline", "nowhere.toml"]) == 2
    write(f'out = "o"\n{SCENE}')
    Path("o").mkdir()
    with file_lock(folder / "o/.pipeline.lock"):
        assert main(["pipeline", "p.toml"]) == 4
    assert "is in use by another pipeline" in capsys.readouterr().err
    write(f'out = "p.toml"\n{SCENE}')
    assert main(["pipeline", "p.toml"]) == 4
    assert "is a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nsteps = -5\n", "p.toml: [train] --steps must be between 1 and 2147483647, got -5."),
        ('[export]\nto = "x.stl"\n', "x.stl: .stl is not a format to export to."),
        ('[export]\nto = ["a.glb", "b.ply"]\n', "p.toml: [export]"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_what_a_command_would_refuse_is_found_before_any_stage_runs(
    folder: Path, text: str, words: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.stl").touch()
    write(f'out = "o"\nstages = ["train", "export"]\n{text}{SCENE}')
    assert main(["pipeline", "p.toml", *more]) == 2
    assert words in capsys.readouterr().err
    assert not list(folder.glob("o/scene*")), "no stage was started"


def test_file_that_an_export_would_write_elsewhere_may_exist(folder: Path) -> None:
    Path("model.safetensors").touch()
    write(f'out = "o"\nstages = ["export"]\n{SCENE}')
    assert main(["pipeline", "p.toml", "--dry-run"]) == 0


def test_run_folders_are_no_place_for_a_pipeline(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/manifest.json").write_text("{}")
    write(SCENE)
    assert main(["pipeline", "p.toml", "--out", "run"]) == 4
    assert "/run of the pipeline is the folder of a run." in capsys.readouterr().err
    assert [path.name for path in Path("run").iterdir()] == ["manifest.json"]


def test_file_that_is_no_text_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_bytes(b"\xff\x00")
    assert main(["pipeline", "p.toml"]) == 2
    assert "p.toml is not a text file in UTF-8." in capsys.readouterr().err
