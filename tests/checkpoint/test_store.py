"""Checkpoints: bit-exact round trips, atomic writes, damage, rotation, rewinding, and errors."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from raymine import checkpoint
from raymine.checkpoint import Best
from raymine.errors import CheckpointError, ResourceError


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Every dtype that a state may hold, and scalar, empty, transposed and strided tensors."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(5, 7, generator=generator)
    return {
        "f32": base,
        "f64": base.double() * torch.pi,
        "f16": base.half(),
        "bf16": base.bfloat16(),
        "i64": torch.tensor([-(2**62), 2**62]),
        "i32": torch.arange(3, dtype=torch.int32),
        "i16": torch.arange(3, dtype=torch.int16),
        "i8": torch.tensor([-128, 127], dtype=torch.int8),
        "u8": torch.arange(256, dtype=torch.uint8),
        "bool": base > 0,
        "scalar": torch.tensor(0.1),
        "scalar.bool": torch.tensor(True),
        "empty": torch.zeros(0),
        "empty.2d": torch.zeros((3, 0), dtype=torch.bfloat16),
        "transposed": base.t(),
        "strided": base[::2, ::3],
        "parameter": torch.nn.Parameter(base.clone()),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def save(folder: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        checkpoint.save(folder, step, tensors(step), {"step": step, "rays": 7}, {"recipe": "ngp"}, keep=keep)


def test_save_and_load_round_trip_is_bit_exact(tmp_path: Path) -> None:
    scalars = {"step": 3, "tau": 0.1 + 0.2, "name": "x", "list": [1, 2.5], "none": None}
    path = checkpoint.save(tmp_path, 3, tensors(), scalars, {"recipe": "ngp"})
    assert path == tmp_path / "step-00000003.json"
    found = checkpoint.load(path)
    assert (found.step, found.scalars, found.meta) == (3, scalars, {"recipe": "ngp"})
    expected = tensors()
    assert found.tensors.keys() == expected.keys()
    for name, value in expected.items():
        assert found.tensors[name].shape == value.shape, name
        assert found.tensors[name].dtype == value.dtype, name
        assert bits(found.tensors[name]) == bits(value), name


def test_tensor_file_is_plain_safetensors(tmp_path: Path) -> None:
    """The safetensors library reads the file, and its own writer produces the same content."""
    checkpoint.save(tmp_path, 1, tensors(), {}, {})
    ours = safetensors.torch.load_file(tmp_path / "step-00000001.safetensors")
    plain = {name: value.detach().contiguous().clone() for name, value in tensors().items()}
    theirs = safetensors.torch.load(safetensors.torch.save(plain))
    assert ours.keys() == theirs.keys()
    assert all(bits(ours[name]) == bits(theirs[name]) for name in ours)


def test_loaded_tensors_are_writable_and_independent_of_the_file(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"a": torch.ones(4)}, {}, {})
    found = checkpoint.load(tmp_path / "step-00000001.json")
    checkpoint.save(tmp_path, 1, {"a": torch.zeros(4)}, {}, {})
    assert found.tensors["a"].tolist() == [1.0] * 4
    found.tensors["a"].add_(1)


def test_empty_state_with_nine_digit_step_round_trips(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 123_456_789, {}, {}, {})
    latest = checkpoint.load_latest(tmp_path)
    assert latest is not None
    assert (latest.checkpoint.step, latest.checkpoint.tensors) == (123_456_789, {})


def test_rotation_keeps_the_last_two_and_the_best_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10)
    checkpoint.mark_best(tmp_path, Best(10, "psnr", 30.5))
    save(tmp_path, 20, 30, 40)
    assert checkpoint.list_steps(tmp_path) == [10, 30, 40]
    assert checkpoint.read_best(tmp_path) == Best(10, "psnr", 30.5)
    best = checkpoint.load_best(tmp_path)
    assert best is not None
    assert best.step == 10
    checkpoint.mark_best(tmp_path, Best(40, "psnr", 31.0))
    save(tmp_path, 50)
    assert checkpoint.list_steps(tmp_path) == [40, 50]
    assert sorted(os.listdir(tmp_path)) == [
        "best.json",
        "step-00000040.json",
        "step-00000040.safetensors",
        "step-00000050.json",
        "step-00000050.safetensors",
    ]


def test_best_is_none_if_its_pointer_is_missing_dangling_or_damaged(tmp_path: Path) -> None:
    save(tmp_path, 10)
    assert checkpoint.read_best(tmp_path) is None
    checkpoint.mark_best(tmp_path, Best(5, "psnr", 1.0))
    assert checkpoint.read_best(tmp_path) is None
    (tmp_path / "best.json").write_text("{")
    assert checkpoint.load_best(tmp_path) is None


def test_load_latest_is_none_without_checkpoints(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path) is None
    assert checkpoint.load_latest(tmp_path / "nowhere") is None
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        checkpoint.load(tmp_path / "step-00000001.json")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


NEWEST = "step-00000020"
DAMAGE = {
    "tensors cut short": lambda f: os.truncate(f / f"{NEWEST}.safetensors", 100),
    "tensors empty": lambda f: os.truncate(f / f"{NEWEST}.safetensors", 0),
    "tensors one byte longer": lambda f: (f / f"{NEWEST}.safetensors").open("ab").write(b"\0"),
    "bit in the header": lambda f: flip(f / f"{NEWEST}.safetensors", 20),
    "last bit": lambda f: flip(f / f"{NEWEST}.safetensors", -1),
    "tensors missing": lambda f: (f / f"{NEWEST}.safetensors").unlink(),
    "json cut short": lambda f: os.truncate(f / f"{NEWEST}.json", 50),
    "json empty": lambda f: os.truncate(f / f"{NEWEST}.json", 0),
    "json not an object": lambda f: (f / f"{NEWEST}.json").write_text("[]"),
    "another step in the json": lambda f: edit(f / f"{NEWEST}.json", '"rays": 7', '"rays": 8'),
}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_load_latest_skips_and_reports_a_damaged_checkpoint(tmp_path: Path, kind: str) -> None:
    save(tmp_path, 10, 20)
    DAMAGE[kind](tmp_path)
    latest = checkpoint.load_latest(tmp_path)
    assert latest is not None
    assert latest.checkpoint.step == 10
    assert latest.damaged == (20,)
    assert len(latest.problems) == 1
    assert NEWEST in latest.problems[0]
    assert "damaged" in latest.problems[0] or "missing" in latest.problems[0]
    # Rewinding to the good checkpoint removes the damaged one, and the next save works.
    checkpoint.rewind(tmp_path, 10, None)
    assert checkpoint.list_steps(tmp_path) == [10]
    save(tmp_path, 20)
    again = checkpoint.load_latest(tmp_path)
    assert again is not None
    assert (again.checkpoint.step, again.problems) == (20, ())


def test_load_latest_raises_and_names_all_checkpoints_if_all_are_damaged(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    for step in (10, 20):
        os.truncate(tmp_path / f"step-000000{step}.safetensors", 9)
    with pytest.raises(CheckpointError, match="Every checkpoint") as caught:
        checkpoint.load_latest(tmp_path)
    assert "step-00000010" in str(caught.value)
    assert "step-00000020" in str(caught.value)
    assert caught.value.exit_code == 4


def test_tensor_file_without_json_is_ignored_and_removed_by_rewind(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    (tmp_path / "step-00000020.json").unlink()
    latest = checkpoint.load_latest(tmp_path)
    assert latest is not None
    assert (latest.checkpoint.step, latest.problems) == (10, ())
    checkpoint.rewind(tmp_path, 10, None)
    assert not (tmp_path / "step-00000020.safetensors").exists()


def test_unknown_format_raises_instead_of_falling_back(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    data = json.loads((tmp_path / f"{NEWEST}.json").read_text())
    data |= {"format": 99, "version": "9.9.9"}
    (tmp_path / f"{NEWEST}.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"format 99, written by raymine 9\.9\.9; .* reads format 1"):
        checkpoint.load_latest(tmp_path)


def test_require_names_only_the_mismatching_field(tmp_path: Path) -> None:
    found = checkpoint.load(checkpoint.save(tmp_path, 1, {}, {}, {"recipe": "ngp", "config": "abc"}))
    checkpoint.require(found, {"recipe": "ngp", "config": "abc"})
    with pytest.raises(CheckpointError, match="recipe is 'ngp' in the checkpoint, 'vanilla' expected") as caught:
        checkpoint.require(found, {"recipe": "vanilla", "config": "abc"})
    assert "config is" not in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
# Writes are the header, 16 non-empty tensors, then the JSON: after 17 successful writes the JSON fails.
@pytest.mark.parametrize("after", [0, 1, 5, 17])
def test_failed_write_keeps_older_checkpoints_and_leaves_no_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, after: int
) -> None:
    save(tmp_path, 10, 20)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    real, calls = os.write, []

    def fail_later(descriptor: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) > after:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", fail_later)
    with pytest.raises(ResourceError, match="Cannot write the checkpoint"):
        save(tmp_path, 30)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    save(tmp_path, 30)
    assert checkpoint.list_steps(tmp_path) == [20, 30]


def test_unsupported_values_raise_before_anything_is_written(tmp_path: Path) -> None:
    for scalars in ({"tau": float("nan")}, {"x": object()}):
        with pytest.raises(CheckpointError, match="cannot be saved as JSON"):
            checkpoint.save(tmp_path, 1, {}, scalars, {})
    with pytest.raises(CheckpointError, match=r"`z` has type torch\.complex64"):
        checkpoint.save(tmp_path, 1, {"z": torch.zeros(1, dtype=torch.complex64)}, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_created_raises_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="create the checkpoint folder"):
        save(tmp_path / "file" / "checkpoints", 1)


def test_rewind_restores_the_best_pointer(tmp_path: Path) -> None:
    save(tmp_path, 10, 20)
    checkpoint.mark_best(tmp_path, Best(20, "psnr", 33.0))
    checkpoint.rewind(tmp_path, 10, Best(10, "psnr", 30.0))
    assert checkpoint.read_best(tmp_path) == Best(10, "psnr", 30.0)
    checkpoint.rewind(tmp_path, 10, None)
    assert checkpoint.read_best(tmp_path) is None
