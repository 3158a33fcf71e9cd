"""`raymine runs`: list, filter, sort, compare, tag and delete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raymine.cli import main
from raymine.rundir import RunDir
from support.fake_training import manifest


def make(name: str, psnr: float | None, protocol: str | None = None, **changes: object) -> Path:
    path = Path("runs") / name
    stored = manifest(status="finished", test_psnr=psnr, **changes)
    RunDir.create(path, root=path.parent, stem="x", config={"seed": len(name)}, manifest=stored).close()
    if protocol is not None:
        (path / "eval").mkdir()
        (path / "eval/metrics.json").write_text(json.dumps({"psnr": psnr, "protocol": {"digest": protocol}}))
    return path


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["runs", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def names(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    return [run["name"] for run in listed(capsys, *arguments)["runs"]]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["runs", *arguments]) in (2, 4)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    return err


def test_runs_lists_nothing_without_a_runs_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "No runs in runs." in err
    assert listed(capsys) == {"root": "runs", "runs": []}


def test_runs_imports_no_torch(tmp_path: Path) -> None:
    make("a", 20.0)
    code = "import sys; from raymine.cli import main; main(['runs']); print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("set()\n")


def test_filters_choose_by_scene_recipe_status_and_tag(capsys: pytest.CaptureFixture[str]) -> None:
    make("a", 20.0, scene="/data/lego", recipe="ngp")
    make("b", 30.0, scene="/data/chair", recipe="ngp", started="2031")
    make("c", None, scene="/data/lego", recipe="vanilla", started="2032")
    assert names(capsys) == ["a", "b", "c"]
    assert names(capsys, "--scene", "lego") == ["a", "c"]
    assert names(capsys, "--scene", "lego", "--recipe", "ngp") == ["a"]
    assert names(capsys, "--status", "failed") == []
    assert listed(capsys, "--tag", "b", "paper", "final")["tags"] == ["final", "paper"]
    assert names(capsys, "--tag", "paper") == ["b"]
    assert main(["runs", "--untag", "runs/b", "paper"]) == 0
    assert names(capsys, "--tag", "paper") == []
    assert names(capsys, "--tag", "final") == ["b"]
    assert names(capsys, "--sort", "psnr") == ["b", "a", "c"]
    assert main(["runs"]) == 0
    assert "final" in capsys.readouterr().out
    assert "letters" in refused(capsys, "--tag", "b", "no/slash")


def test_scores_of_different_protocols_are_not_ranked_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    make("a", 20.0, "p1")
    make("b", 30.0, "p2")
    make("quick", 25.0)
    told = refused(capsys, "--sort", "psnr")
    assert "different protocols: 1 run with p1, 1 run with p2, 1 run with quick" in told
    assert names(capsys, "--sort", "psnr", "--across-protocols") == ["b", "quick", "a"]
    assert names(capsys, "--sort", "step") == ["a", "b", "quick"]


def test_quick_scores_of_different_views_are_not_ranked_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    views = {"split": "test", "views": 8, "available": 10, "width": 25, "height": 25}
    make("a", 20.0, quick_protocol={**views, "digest": "0123456789ab"})
    make("b", 30.0, quick_protocol={**views, "digest": "0123456789ab"})
    assert names(capsys, "--sort", "psnr") == ["b", "a"]
    assert main(["runs"]) == 0
    assert "protocol" not in capsys.readouterr().out
    make("c", 25.0, quick_protocol={**views, "digest": "ba9876543210", "width": 12, "height": 12})
    told = refused(capsys, "--sort", "psnr")
    assert "2 runs with quick-0123456789ab (8 of 10 test images up to 25x25)" in told
    assert "1 run with quick-ba9876543210 (8 of 10 test images up to 12x12)" in told
    assert "raymine eval RUN" in told
    assert names(capsys, "--sort", "psnr", "--across-protocols") == ["b", "c", "a"]
    assert [run["protocol"] for run in listed(capsys)["runs"]][2] == "quick-ba9876543210"
    assert main(["runs"]) == 0
    assert "protocol" in capsys.readouterr().out


def test_compare_shows_settings_that_differ_first(capsys: pytest.CaptureFixture[str]) -> None:
    make("a", 20.0)
    make("bb", 20.0, seed=2)
    found = listed(capsys, "--compare", "a", "bb")
    assert (found["settings"][0]["what"], found["settings"][0]["second"]) == ("seed", 2)
    assert main(["runs", "--compare", "a", "bb"]) == 0
    out = capsys.readouterr().out
    assert out.index("settings that differ") < out.index("scores")
    assert "takes two runs, got 1" in refused(capsys, "--compare", "a")
    assert "no run nothing" in refused(capsys, "--compare", "a", "nothing")


def test_delete_needs_yes_where_nobody_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    path = make("a", 20.0)
    assert "nobody to ask" in refused(capsys, "--delete", "a")
    assert path.exists()
    assert main(["runs", "--delete", "a", "--yes"]) == 0
    assert not path.exists()
    assert names(capsys) == []
    assert names(capsys, "--all") == []
    Path("photos").mkdir()
    assert "photos is not a run folder" in refused(capsys, "--delete", "photos", "--yes")
    assert Path("photos").exists()


def test_all_and_rebuild_find_runs_of_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", 20.0)
    assert names(capsys) == ["a"]
    Path("elsewhere").mkdir()
    assert names(capsys, "--root", "elsewhere", "--all") == ["a"]
    (tmp_path / "cache/runs.sqlite").unlink()
    assert names(capsys, "--root", "elsewhere", "--all") == ["a"]
    assert main(["runs", "--rebuild"]) == 0
    assert "Rebuilt the run index: 1 run." in capsys.readouterr().err
