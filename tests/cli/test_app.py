"""The command line: exit codes, stdout and stderr, and error messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raymine import __version__
from raymine.cli import app, main
from raymine.errors import ConfigError, MissingExtraError, ResourceError, SceneError


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from raymine.cli import main; code = main(['--help']);"
        "heavy = {'torch', 'numba', 'numpy', 'PIL', 'av'} & set(sys.modules); print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip().endswith("0 []")
    for name in (
        "demo",
        "check",
        "train",
        "eval",
        "render",
        "runs",
        "reproduce",
        "pipeline",
        "pack",
        "verify",
        "bench",
        "doctor",
    ):
        assert name in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "check",
        "train",
        "eval",
        "render",
        "runs",
        "reproduce",
        "pipeline",
        "pack",
        "verify",
        "cache",
        "bench",
        "doctor",
    ],
)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: raymine {name}" in text
    assert "{None}" not in text


def test_version_is_printed_and_no_arguments_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"raymine {__version__}\n"
    assert main([]) == 2
    assert "usage: raymine" in capsys.readouterr().out


def test_unknown_command_suggests_the_closest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "scene"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (f"error: there is no command `trian`. Did you mean `train`?\nCommands: {', '.join(app._NAMES)}.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["train", "x", "--stepss", "3"],
            ["`raymine train` has no option --stepss. Did you mean --steps?\nOptions: raymine train --help\n"],
        ),
        (["train", "x", "--steps", "three"], ["--steps must be a whole number, got `three`.\n"]),
        (["train", "x", "--device", "tpu"], ["--device must be auto, cpu or cuda, got `tpu`."]),
        (["train"], ["`raymine train` needs its argument SCENE.\nOptions: raymine train --help\n"]),
        (["ingest", "photos"], ["error: `raymine ingest` needs --out OUT.\nOptions: raymine ingest --help\n"]),
        (["--json", "runs"], ["--json stands before the command; options come after it."]),
    ],
)
def test_invalid_options_exit_with_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
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
            "error: not enough memory (no details).\nClose other programs, or use a machine with more memory.\n",
        ),
        (
            RuntimeError("[enforce fail] CPUAllocator: can't allocate memory: 9 bytes.\nmore"),
            5,
            "error: not enough memory ([enforce fail] CPUAllocator: can't allocate memory: 9 bytes.).\n"
            "Close other programs, or use a machine with more memory.\n",
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
def test_errors_print_a_message_without_traceback_and_set_the_exit_code(
    error: BaseException, code: int, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object) -> int:
        raise error

    monkeypatch.setattr(app.Runs, "execute", fail)
    assert main(["runs"]) == code
    assert capsys.readouterr() == ("", printed)


def test_unexpected_exception_propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(app.Runs, "execute", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["runs"])


def test_broken_pipe_exits_with_141_and_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "raymine.cli", "--version"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


def test_missing_scene_exits_with_3_and_missing_run_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "nowhere"]) == 3
    assert "nowhere" in capsys.readouterr().err
    assert main(["eval", "nowhere"]) == 4
    assert capsys.readouterr().err.startswith("error: There is no run folder nowhere.\n")
    assert main(["render", "nowhere"]) == 4
    assert not (tmp_path / "runs").exists()


def test_invalid_train_options_create_no_run_folder(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(scene), "--recipe", "npg"]) == 2
    err = capsys.readouterr().err
    assert "npg" in err
    assert "Did you mean `ngp`?" in err
    assert main(["train", str(scene), "--mining", "gold"]) == 2
    assert "gold" in capsys.readouterr().err
    assert main(["train", str(scene), "--steps", "5", "--max-seconds", "5"]) == 2
    assert "a run has one limit" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_train_eval_runs_and_render_work_end_to_end(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert (
        document(["train", str(scene), "--steps", "5", "--out", "r", "--resume", "--device", "cpu", "--json"])["step"]
        == 5
    )
