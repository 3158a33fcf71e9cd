"""The command line: exit codes, what goes to stdout and stderr, and the words of every refusal."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from raymine import __version__
from raymine.cli import app, main
from raymine.cli import output as cli_output
from raymine.cli.demo import next_free, orbit_views
from raymine.cli.render import check_target, parse_size
from raymine.errors import ConfigError, MissingExtraError, ResourceError, SceneError
from raymine.evaluate import Evaluation, ViewScore


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A tiny scene in Blender's format: a disc seen from eight sides, 3 of them held out."""
    folder = tmp_path / "scene"
    y, x = np.mgrid[:16, :16] - 7.5
    inside = (x * x + y * y < 30)[..., None]
    for split, angles in (("train", np.arange(5) * 1.25), ("test", np.arange(3) * 2.0 + 0.4)):
        (folder / split).mkdir(parents=True)
        frames = []
        for i, angle in enumerate(angles):
            rgba = np.where(inside, [200, 60 + 10 * i, 40 + len(split), 255], [0, 0, 0, 0]).astype(np.uint8)
            Image.fromarray(rgba).save(folder / split / f"r_{i}.png")
            c, s = math.cos(angle), math.sin(angle)
            matrix = [[-s, 0.0, c, 4 * c], [c, 0.0, s, 4 * s], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": matrix})
        text = json.dumps({"camera_angle_x": 0.7, "frames": frames})
        (folder / f"transforms_{split}.json").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_help_is_quick_because_it_loads_no_heavy_package() -> None:
    code = (
        "import sys; from raymine.cli import main; code = main(['--help']);"
        "heavy = {'torch', 'numba', 'numpy', 'PIL', 'av'} & set(sys.modules); print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip().endswith("0 []")
    for name in ("demo", "check", "train", "eval", "render", "runs", "bench", "doctor"):
        assert name in done.stdout


@pytest.mark.parametrize("name", ["demo", "check", "train", "eval", "render", "runs", "bench", "doctor"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: raymine {name}" in text
    assert "{None}" not in text


def test_version_and_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"raymine {__version__}\n"
    assert main([]) == 2
    assert "usage: raymine" in capsys.readouterr().out


def test_unknown_command_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "scene"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: there is no command `trian`. Did you mean `train`?\n"
        "Commands: demo, check, train, eval, render, runs, bench, doctor.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "x", "--stepss", "3"], ["Unrecognized options", "--stepss", "--steps INT"]),
        (["train", "x", "--steps", "three"], ["--steps", "three"]),
        (["train", "x", "--device", "tpu"], ["--device", "tpu", "cuda"]),
        (["train"], ["SCENE", "required"]),
        (["--json", "runs"], ["--json"]),
    ],
)
def test_wrong_options_exit_with_2(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (SceneError("The scene x is odd.", hint="Fix it."), 3, "error: The scene x is odd.\nFix it.\n"),
        (ConfigError("no [bold]markup[/bold]"), 2, "error: no [bold]markup[/bold]\n"),
        (ResourceError("No space."), 5, "error: No space.\n"),
        (
            MissingExtraError("av", "video", "Writing MP4"),
            7,
            "error: Writing MP4 needs the package `av`, which is not installed.\n"
            "Install it with: pip install 'raymine[video]'\n",
        ),
        (KeyboardInterrupt(), 130, "error: stopped by Ctrl-C\n"),
        (
            MemoryError(),
            5,
            "error: not enough memory (no details).\nTry --downscale 2 or more, or close other programs.\n",
        ),
        (
            RuntimeError("[enforce fail] CPUAllocator: can't allocate memory: 9 bytes.\nmore"),
            5,
            "error: not enough memory ([enforce fail] CPUAllocator: can't allocate memory: 9 bytes.).\n"
            "Try --downscale 2 or more, or close other programs.\n",
        ),
        (
            OSError(28, "No space left on device", "/x/y"),
            5,
            "error: no space left on the disk (/x/y).\nFree some space and try again.\n",
        ),
        (
            PermissionError(13, "Permission denied", "/x/y"),
            5,
            "error: no permission to use /x/y.\nChange its permissions, or choose another folder.\n",
        ),
    ],
)
def test_every_failure_is_plain_lines_and_a_code(
    error: BaseException, code: int, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object) -> int:
        raise error

    monkeypatch.setattr(app.Runs, "execute", fail)
    assert main(["runs"]) == code
    assert capsys.readouterr() == ("", printed)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(app.Runs, "execute", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["runs"])


def test_reader_that_goes_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "raymine.cli", "--version"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


def test_check_reports_problems_and_its_exit_code(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(scene), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    (scene / "train" / "r_1.png").write_bytes((scene / "train" / "r_1.png").read_bytes()[:60])
    assert main(["check", str(scene), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["errors"] >= 1
    assert "r_1" in json.dumps(document["problems"])
    assert main(["check", str(scene)]) == 3
    out = capsys.readouterr().out
    assert "r_1" in out
    assert f"{scene}: 1 error, no warnings. Training needs the errors fixed." in out.replace("\n", " ")


def test_no_such_scene_and_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "nowhere"]) == 3
    assert "nowhere" in capsys.readouterr().err
    assert main(["eval", "nowhere"]) == 4
    assert capsys.readouterr().err.startswith("error: There is no run folder nowhere.\n")
    assert main(["render", "nowhere"]) == 4
    assert not (tmp_path / "runs").exists()


def test_train_refusals_leave_no_run_behind(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(scene), "--recipe", "npg"]) == 2
    err = capsys.readouterr().err
    assert "npg" in err
    assert "Did you mean `ngp`?" in err
    assert main(["train", str(scene), "--mining", "gold"]) == 2
    assert "gold" in capsys.readouterr().err
    assert main(["train", str(scene), "--steps", "5", "--max-seconds", "5"]) == 2
    assert "a run has one limit" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_runs_of_an_empty_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "No runs in runs." in err
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"root": "runs", "runs": []}


def test_doctor_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["raymine"]["version"] == __version__
    assert {"hash_grid", "march", "composite"} <= {row["op"] for row in report["backends"]}
    assert all(row["reason"] for row in report["backends"])
    assert report["cuda"]["reason"]
    assert report["cache"]["folder"] == str(tmp_path / "cache")
    assert main(["doctor"]) == 0
    assert "hash_grid" in capsys.readouterr().out


def test_train_eval_render_runs_from_end_to_end(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def document(arguments: list[str]) -> Any:
        code = main(arguments)
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    summary = document(["train", str(scene), "--steps", "3", "--device", "cpu", "--out", "r", "--json"])
    assert (summary["run"], summary["status"], summary["step"]) == ("r", "finished", 3)
    scores = document(["eval", "r", "--json"])
    assert (scores["step"], scores["split"], scores["count"]) == (3, "test", 3)
    assert scores["psnr"] == pytest.approx(np.mean([row["psnr"] for row in scores["images"]]))
    assert json.loads(Path("r/eval/metrics.json").read_text())["psnr"] == scores["psnr"]
    assert {f"r_0-{kind}.png" for kind in ("pred", "true", "error", "depth", "opacity", "sheet")} <= set(
        os.listdir("r/eval/images")
    )
    assert document(["eval", "r", "--json", "--split", "train", "--views", "2"])["count"] == 2
    assert main(["eval", "r", "--split", "val"]) == 2
    assert "It has: train 5, test 3." in capsys.readouterr().err
    listed = document(["runs", "--root", ".", "--json"])["runs"]
    assert [(run["name"], run["status"], run["step"]) for run in listed] == [("r", "finished", 3)]

    options = ["--frames", "2", "--size", "12x10", "--depth", "--opacity"]
    assert main(["render", "r", "--path", "orbit", "--out", "frames", *options]) == 0
    assert sorted(os.listdir("frames")) == [f"{k}-000{i}.png" for k in ("colour", "depth", "opacity") for i in (0, 1)]
    with Image.open("frames/depth-0001.png") as picture:
        assert picture.size == (12, 10)
    capsys.readouterr()
    assert main(["render", "r", "--path", "spiral", *options]) == 0
    assert capsys.readouterr().out.split() == [f"r/export/spiral{kind}.mp4" for kind in ("", "-depth", "-opacity")]
    assert main(["render", "r", "--path", "missing.json"]) == 2
    assert "No camera path file missing.json." in capsys.readouterr().err

    assert main(["train", str(scene), "--steps", "3", "--out", "r"]) == 4
    assert "--resume" in capsys.readouterr().err
    assert document(["train", str(scene), "--steps", "5", "--out", "r", "--resume", "--json"])["step"] == 5


@pytest.mark.parametrize("text", ["12", "0x4", "ax3", "12x", "-1x4", "1x2x3", ""])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="--size must look like 320x240"):
        parse_size(text)


def test_sizes() -> None:
    assert parse_size("320x240") == (320, 240)
    assert parse_size("320X240") == (320, 240)
    assert parse_size(None) is None


def test_render_targets_are_checked_before_rendering(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "dir.mp4").mkdir()
    for target, words in (
        (tmp_path / "full", "is not empty"),
        (tmp_path / "full" / "x", "is a file; frames need a folder"),
        (tmp_path / "dir.mp4", "is a folder; a video needs a file name"),
        (tmp_path / "x.gif", "written as .mp4, not .gif"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_target(target)
    check_target(tmp_path / "new")
    check_target(tmp_path / "new.mp4")


def test_next_free_name(tmp_path: Path) -> None:
    assert next_free(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert next_free(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.parametrize(("seconds", "views"), [(0.01, 60), (0.5, 40), (5.0, 16)])
def test_demo_renders_what_the_machine_can(seconds: float, views: int) -> None:
    scores = (ViewScore("a", 30.0, 0.9, 9 * seconds), ViewScore("b", 30.0, 0.9, seconds))
    assert orbit_views(Evaluation(scores, 1.0)) == views


def test_narrow_table_keeps_numbers_whole() -> None:
    row = ("/a/rather/long/path/to/a/run", "a scene", "29.83", "11.40")
    made = cli_output.table("", ("run", "scene", "train", "test"), [row], right=("train", "test"))
    text = io.StringIO()
    Console(file=text, width=36).print(made)
    assert "29.83" in text.getvalue()
    assert "11.40" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 36


def test_output_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert [cli_output.duration(s) for s in (7.26, 250, 7500)] == ["7.3 s", "4 min 10 s", "2 h 05 min"]
    assert [cli_output.size(b) for b in (12, 2048, 3 << 30, 5 << 40)] == ["12 B", "2.0 KiB", "3.0 GiB", "5.0 TiB"]
    assert cli_output.number(None) == cli_output.number(math.nan) == "-"
    cli_output.emit_json({"a": math.inf, "b": (Path("x"), True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": ["x", True, None]}
    cli_output.say("a [red]path[/red]")
    assert capsys.readouterr().err == "a [red]path[/red]\n"
