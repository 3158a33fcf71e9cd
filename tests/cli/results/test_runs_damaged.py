"""Damaged run folders through `runs`, `eval`, `render` and `train --resume`: a message or a right result.

Every case damages one file of a small real run, by a seed. Nothing may raise, hang, succeed with a wrong result, or
damage the folder further.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raymine.cli import main
from raymine.files import json_bytes
from support.disc_scene import write_scene_of_eight
from support.mutate import mutated_bytes, mutated_json, replace_file

CASES, SECONDS = 50, 60
TRAIN = ("--recipe", "support.runs:tiny", "--device", "cpu", "--hold-out", "1", "--json")
CODES = (0, 2, 3, 4, 5)


@dataclass(frozen=True)
class Intact:
    """A scene, a run of it, what `eval` and `render` give for its checkpoints, and the result of its resumption."""

    scene: Path
    run: Path
    psnr: dict[int, float]
    resumed: float


def called(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Run a command: its exit code, the JSON document on stdout or None, and stderr."""
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("{") else None, err


@pytest.fixture
def intact(tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> Intact:
    folder = tmp_path_factory.mktemp("intact")
    scene = write_scene_of_eight(folder / "scene")
    run, more = folder / "run", folder / "more"
    train = ["train", str(scene), *TRAIN, "--out", str(run)]
    assert called([*train, "--steps", "8"], capsys)[0] == 0
    checkpoints = sorted((run / "checkpoints").glob("step-*.json"))
    assert len(checkpoints) >= 2
    psnr = {}
    for latest in reversed(checkpoints):
        _, scores, _ = called(["eval", str(run), "--json"], capsys)
        psnr[scores["step"]] = scores["psnr"]
        latest.rename(latest.with_suffix(".away"))
    for path in checkpoints:
        path.with_suffix(".away").rename(path)
    shutil.rmtree(run / "eval")
    shutil.copytree(run, more)
    _, result, _ = called(["train", str(scene), *TRAIN, "--out", str(more), "--steps", "10", "--resume"], capsys)
    assert result["step"] == 10
    return Intact(scene, run, psnr, result["held_out_psnr"])


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """Raise in the main thread after `SECONDS` for each case."""

    def hung(*_: object) -> None:
        raise AssertionError("a command hung")

    before = signal.signal(signal.SIGALRM, hung)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def damage(run: Path, random: Random) -> str:
    """Damage one file of a run; returns what was done. In half of the cases the run has a single checkpoint."""
    if random.random() < 0.5:
        for path in sorted((run / "checkpoints").glob("step-*"))[:-2]:
            path.unlink()
    files = sorted(path for path in run.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    path = random.choice(files)
    kinds = ["bytes", "replaced", *(["json", "json", "signed"] if path.suffix == ".json" else ["signed"])]
    kind = random.choice(kinds)
    if kind == "replaced":
        return f"{path.name}: {replace_file(path, random)}"
    if kind == "bytes" or (kind == "signed" and path.suffix == ".jsonl"):
        path.write_bytes(mutated_bytes(path.read_bytes(), random))
    elif kind == "json" or not path.name.startswith("step-"):
        path.write_bytes(mutated_json(json.loads(path.read_bytes()), random))
    else:
        _damage_signed(path, random)
    return f"{path.name}: {kind}"


def _damage_signed(path: Path, random: Random) -> None:
    """Damage a checkpoint and make its checksums right again, as for a file that was wrong when it was written."""
    body_path, tensor_path = path.with_suffix(".json"), path.with_suffix(".safetensors")
    body = json.loads(body_path.read_bytes())
    del body["digest"]
    if path.suffix == ".safetensors":
        data = tensor_path.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        kind = random.choice(("length", "header", "cut"))
        if kind == "length":
            data = (2 ** random.choice((0, 20, 60, 63))).to_bytes(8, "little") + data[8:]
        elif kind == "header":
            changed = mutated_json(json.loads(data[8:header]), random)
            data = len(changed).to_bytes(8, "little") + changed + data[header:]
        else:
            data = data[: random.randrange(len(data))]
        tensor_path.write_bytes(data)
        body["tensors"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    else:
        # Only what JSON can write can have been signed.
        key = random.choice([*body, "scalars", "meta"])
        try:
            body[key] = json.loads(mutated_json(body[key], random))
            json_bytes(body)
        except (ValueError, RecursionError):
            body.pop(key)
    body_path.write_bytes(json_bytes({**body, "digest": hashlib.sha256(json_bytes(body)).hexdigest()}))


def snapshot(run: Path) -> dict[str, bytes | str]:
    """The content of every file of a run but its locks and what `eval` and `render` write."""
    found: dict[str, bytes | str] = {}
    for folder, names, files in os.walk(run):
        names[:] = [name for name in names if name not in ("eval", "export")]
        for name in files:
            path = Path(folder, name)
            if not name.startswith(".lock"):
                found[str(path.relative_to(run))] = path.read_bytes() if path.is_file() else "no file"
    return found


def test_damaged_run_folders_give_a_message_or_a_right_result(
    intact: Intact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = 0
    for seed in range(CASES):
        signal.alarm(SECONDS)
        root = tmp_path / str(seed)
        run = root / "damaged"
        shutil.copytree(intact.run, root / "whole")
        shutil.copytree(intact.run, run)
        what = f"seed {seed}, {damage(run, Random(seed))}"
        before = snapshot(run)

        code, listed, err = called(["runs", "--root", str(root), "--json"], capsys)
        assert code == 0, (what, err)
        is_run = os.path.lexists(run / "manifest.json")
        assert {row["name"] for row in listed["runs"]} == ({"damaged", "whole"} if is_run else {"whole"}), what
        assert main(["runs", "--root", str(root)]) == 0, what

        code, scores, err = called(["eval", str(run), "--json"], capsys)
        assert code in CODES, (what, err)
        assert (code == 0) == (scores is not None), what
        if scores is not None:
            assert intact.psnr.get(scores["step"]) == scores["psnr"], what
        refused += code != 0
        options = ["--path", "orbit", "--frames", "1", "--size", "8x8", "--out", str(root / "frames")]
        rendered, _, err = called(["render", str(run), *options], capsys)
        assert rendered == code, (what, err)
        assert snapshot(run) == before, what

        arguments = ["train", str(intact.scene), *TRAIN, "--out", str(run), "--steps", "10", "--resume"]
        code, result, err = called(arguments, capsys)
        assert code in CODES, (what, err)
        if code == 0:
            assert (result["step"], result["held_out_psnr"]) == (10, intact.resumed), what
        else:
            assert "\nerror: " in f"\n{err}", what
            after = snapshot(run)
            # The manifest records the failure, and the best of the checkpoints that are left is marked anew.
            free = ("manifest.json", "checkpoints/best.json")
            lost = [name for name, data in before.items() if name not in free and after.get(name) != data]
            assert not lost, (what, lost, err)
        shutil.rmtree(root)
    assert 10 < refused < CASES, "the damage reaches what eval reads, and some of it does not matter"
