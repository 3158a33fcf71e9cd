"""`raymine bench mining` end to end: a tiny benchmark that is killed and resumed, its HTML page, and error messages."""

from __future__ import annotations

import html
import itertools
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raymine import recipes
from raymine.bench import MiningRequest, StepRequest, bench_mining, bench_step, mining, read_document, table_of
from raymine.bench.records import Document
from raymine.bench.report.page import render_page
from raymine.cli import bench as cli_bench
from raymine.cli import main
from raymine.config import to_json
from raymine.contracts import Scene
from raymine.errors import RunError, SceneError
from raymine.files import is_temp
from raymine.step import TrainConfig
from support.bench_records import made_up_document, made_up_run
from support.disc_scene import write_scene_of_eight
from support.paths import environment
from support.step import CONFIG

FIGURES = ("psnr", "loss", "skewness", "share", "memory", "distributions", "picked", "ray", "hard", "views")


def tiny(scene: Scene, device: str) -> TrainConfig:
    """A recipe for these tests."""
    return CONFIG


SCRIPT = """
import os, signal, sys
import numba, torch
torch.set_num_threads(1); numba.set_num_threads(1)
from support.step import CONFIG
from raymine import recipes
from raymine.bench import MiningRequest, SilentBenchObserver, bench_mining
recipes.RECIPES["ngp"] = lambda scene, device: CONFIG

class Killer(SilentBenchObserver):
    runs = 0
    def run_started(self, number, total, policy, seed):
        self.runs = number
    def trained(self, seconds):
        if self.runs == 2 and seconds > 0.2:
            os.kill(os.getpid(), signal.SIGKILL)

from pathlib import Path
bench_mining(MiningRequest({scene!r}, "none,hard", 1.0, device="cpu", out=Path({out!r})), Killer())
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A scene, and a benchmark on it that was killed in its second run of two."""
    root = tmp_path_factory.mktemp("bench")
    scene, out = write_scene_of_eight(root / "scene"), root / "out"
    script = SCRIPT.format(scene=str(scene), out=str(out))
    cache = str(tmp_path_factory.getbasetemp() / "cache")
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(RAYMINE_CACHE=cache),
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return scene, out


def bench(scene: Path, *options: str) -> int:
    return main(
        ["bench", "mining", str(scene), "--device", "cpu", "--seconds", "1", "--policies", "none,hard", *options]
    )


def test_killed_benchmark_resumes_and_writes_results_and_page(
    killed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene, out = killed
    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    before = read_document(out)
    assert not before.complete
    assert [run.policy for run in before.runs] == ["none"]
    (out / ".mining.json.1-0.raymine-tmp").write_text("half a file")

    assert bench(scene, "--out", str(out)) == 4
    assert "--resume" in capsys.readouterr().err
    assert bench(scene, "--out", str(out), "--resume", "--downscale", "2") == 2
    assert "setting.downscale: 1 in the benchmark, 2 asked" in capsys.readouterr().err

    assert bench(scene, "--out", str(out), "--resume", "--json") == 0
    printed, told = capsys.readouterr()
    document = read_document(out)
    assert json.loads(printed)["summaries"] == to_json(document.summaries)
    assert "run 2 of 2: hard, seed 0" in told
    assert document.complete
    assert [(run.policy, run.seed) for run in document.runs] == [("none", 0), ("hard", 0)]
    assert document.runs[0] == before.runs[0]
    assert not [path for path in out.iterdir() if is_temp(path)]
    for run in document.runs:
        assert 1.0 <= run.seconds < 1.5
        assert len(run.looks) >= 6
        assert run.looks[-1].seconds == run.seconds
        assert run.psnr == pytest.approx(run.looks[-1].psnr, abs=0.1)
    assert document.runs[0].share == 1.0 > document.runs[1].share
    assert document.runs[1].trace.tau
    _check_page((out / "mining.html").read_text(), document)


def _check_page(text: str, document: Document) -> None:
    """The page has every figure, the table of `table_of`, and no external resources."""
    for name in FIGURES:
        section = re.search(rf'<figure id="{name}".*?</figure>', text, flags=re.DOTALL)
        assert section, name
        assert re.search(r"<svg viewBox|<img alt", section[0]), name
        assert re.search(r"<figcaption>[^<]{40,}</figcaption>", section[0]), name
    rows = re.search(r'<table id="results">.*?<tbody>(.*?)</tbody>', text, flags=re.DOTALL)
    assert rows
    lines = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in rows[1].strip().splitlines()]
    policies = re.findall(r'<th scope="col">(.*?)</th>', text)[1:]
    cells = [
        [policy, *column]
        for policy, column in zip(policies, zip(*(row[1:] for row in lines), strict=True), strict=True)
    ]
    assert [[html.unescape(cell) for cell in row] for row in cells] == [list(row) for row in table_of(document).rows]
    for row, summary in zip(cells, document.summaries, strict=True):
        assert summary.psnr_end is not None
        assert row[0] == summary.policy
        assert float(row[3]) == pytest.approx(summary.psnr_end.mean, abs=0.005)
        assert float(row[7]) == pytest.approx(summary.share.mean, abs=0.0005)
        assert float(row[8]) == pytest.approx(summary.memory.mean / 2**20, abs=0.005)
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(identifiers)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text


def test_resuming_a_finished_benchmark_only_writes_its_page_again(
    killed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, out = killed
    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    request = MiningRequest(scene, "none,hard", 1.0, device="cpu", out=out, resume=True)
    first = bench_mining(request).document
    (out / "mining.html").unlink()
    again = bench_mining(request)
    assert again.document == first
    assert again.page == out / "mining.html"
    assert again.page.is_file()


def test_page_shows_ranges_over_seeds_and_escapes_html(tmp_path: Path) -> None:
    ramp = [float(i) for i in range(12)]
    runs = tuple(
        made_up_run(name, seed, [p + seed for p in ramp]) for seed in (0, 1) for name in ("prune", "hard:topk", "hard")
    )
    document = made_up_document(runs, seeds=2)
    document = replace(document, command=("raymine", "<script>"), complete=False)
    text = render_page(tmp_path, document)
    assert "11.50 (11.00–12.00)" in text
    assert "<script>" not in text
    assert "Incomplete" in text
    assert "none was not trained" in text


def test_runs_are_ordered_by_seed_then_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    monkeypatch.setattr(
        mining._MiningBench, "_one", lambda self, _, policy, seed, __: made_up_run(policy, seed, [1.0] * 12)
    )
    request = MiningRequest(write_scene_of_eight(tmp_path / "scene"), "none,prune", 8.0, 2, device="cpu", page=False)
    found = bench_mining(replace(request, runs_root=tmp_path / "runs"))
    order = [(run.seed, run.policy) for run in found.document.runs]
    assert order == list(itertools.product((0, 1), ("none", "prune")))
    assert found.folder.name == "bench-mining-scene-1"
    assert found.page is None
    assert bench_mining(replace(request, runs_root=tmp_path / "runs")).folder.name == "bench-mining-scene-2"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["minning", "x"], 2, "no benchmark `minning`. Did you mean `mining`?"),
        (["mining", "x", "--policies", "easy"], 2, "no policy `easy`"),
        (["mining", "x", "--seconds", "0"], 2, "--seconds must be a positive number"),
        (["mining", "x", "--seconds", "nan"], 2, "--seconds must be a positive number"),
        (["mining", "x", "--seeds", "0"], 2, "--seeds must be between 1 and 1000, got 0."),
        (["mining", "x", "--views", "0"], 2, "--views must be at least 1"),
        (["mining", "x", "--resume"], 2, "--resume needs --out"),
        (["mining", "no-such-scene"], 3, "no-such-scene"),
        (["step", "no-such-scene"], 3, "no-such-scene"),
        (["step", "x", "--seconds", "0"], 2, "--seconds must be a positive number"),
        (
            ["step", "x", "--seeds", "2"],
            2,
            "`raymine bench step` has no option --seeds. It is an option of `raymine bench mining`.",
        ),
        (["step", "x", "--out", "."], 4, "is a folder"),
    ],
)
def test_invalid_request_exits_with_code_and_message(
    options: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *options]) == code
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("columns", [200, 70])
def test_table_has_one_column_per_policy_on_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ramp = [float(i) for i in range(12)]
    document = made_up_document(tuple(made_up_run(name, 0, ramp) for name in ("none", "prune", "hard")))
    monkeypatch.setattr(cli_bench.output, "_PIPE_WIDTH", columns)
    cli_bench._print_table("title", table_of(document))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    rows = [[cell.strip() for cell in re.split("[┃│]", line)] for line in text.splitlines() if "policy" in line]
    assert rows[0][1:3] == (["policy", "dB at 2 s"] if columns == 200 else ["policy", "none"])


def test_ctrl_c_prints_the_resume_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    monkeypatch.setattr(mining._MiningBench, "_one", interrupted)
    monkeypatch.chdir(tmp_path)
    assert bench(write_scene_of_eight(tmp_path / "scene")) == 130
    assert "--resume --out runs/bench-mining-scene-1" in capsys.readouterr().err
    assert not read_document(tmp_path / "runs/bench-mining-scene-1").complete


def test_missing_matplotlib_fails_before_the_scene_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mining.importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "mining", str(tmp_path / "nowhere")]) == 7
    assert "pip install 'raymine[report]'" in capsys.readouterr().err
    assert main(["bench", "mining", str(tmp_path / "nowhere"), "--no-page"]) == 3


def test_scene_without_held_out_views_or_foreign_folder_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = write_scene_of_eight(tmp_path / "scene")
    request = MiningRequest(scene, device="cpu", out=scene)
    with pytest.raises(RunError, match="left untouched"):
        bench_mining(request)
    monkeypatch.setattr(mining, "evaluation_frames", lambda *_: ())
    with pytest.raises(SceneError, match="no held-out views"):
        bench_mining(request)


def test_recipe_is_the_one_that_training_would_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recipes.RECIPES, "ngp-large", tiny)
    monkeypatch.setattr(recipes, "chosen_for", lambda scene: ("ngp-large", "the test says so"))
    monkeypatch.setattr(
        mining._MiningBench, "_one", lambda self, _, policy, seed, __: made_up_run(policy, seed, [1.0] * 12)
    )
    scene = write_scene_of_eight(tmp_path / "scene")
    request = MiningRequest(scene, "none", 8.0, device="cpu", page=False, runs_root=tmp_path / "runs")
    assert bench_mining(request).document.setting.recipe == "ngp-large"
    assert bench_step(StepRequest(scene, "none", 0.2, device="cpu"))[0].recipe == "ngp-large"


def test_step_benchmark_appends_complete_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(recipes.RECIPES, "ngp", tiny)
    scene, rows_file = write_scene_of_eight(tmp_path / "scene"), tmp_path / "rows" / "step.jsonl"
    arguments = ["bench", "step", str(scene), "--device", "cpu", "--seconds", "0.5", "--out", str(rows_file)]
    assert main([*arguments, "--policies", "none,hard"]) == 0
    assert main([*arguments, "--policies", "prune", "--json"]) == 0
    said = capsys.readouterr().out
    assert "ms a step, median" in said
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert [row["policy"] for row in rows] == ["none", "hard", "prune"]
    assert json.loads(said[said.index("[\n") :])[0] == rows[2]
    for row in rows:
        assert (row["engine"], row["stages"], row["busy"], row["memory"]) == ("plain", {}, None, None)
        assert row["step_memory"] is row["plain_step_memory"] is None
        assert (row["recipe"], row["views"]) == ("ngp", 3)
        assert row["shapes"]["samples"] == CONFIG.batch.samples
        assert row["environment"]["device"]
        assert row["mean_step_ms"] == pytest.approx(1e3 * row["seconds"] / row["steps"])
        assert [a for a, _ in row["psnr"]] == sorted(a for a, _ in row["psnr"])
        assert set(row["reached"]) == {"30", "33", "35", "36"}
        assert row["frames_per_second"] > 0
